//! Lists objects: all, a page, or those a selector matches, at one revision.

use std::sync::Arc;

use knarr_api::status::Status;
use knarr_store::{Entry, Error, Range};

use super::continue_token::ContinueToken;
use super::time_slice::TimeSlice;
use super::{store_error, wait_for_revision};
use crate::convert;
use crate::resource_request::ResourceRequest;
use crate::route::options::ListOptions;
use crate::selection::{Selection, topic};
use crate::stored;

/// A page of a list, as of one revision.
pub struct Listed {
    pub entries: Vec<Arc<Entry>>,
    pub revision: u64,
    pub continue_token: String,
    /// `None` when a selector makes it unknown.
    pub remaining: Option<usize>,
}

/// Lists the objects of the request's namespace, or of the cluster.
pub async fn list(call: &ResourceRequest<'_>, options: &ListOptions, selection: &Selection) -> Result<Listed, Status> {
    let prefix = call.resource.range(&call.target.namespace);
    let start = start(call, options, &prefix).await?;
    if let Some(name) = selection.name().filter(|_| start.after.is_none() && start.at.is_none())
        && (!call.target.namespace.is_empty() || !call.resource.kind.namespaced)
    {
        return one(call, name, selection).await;
    }
    let limit = if reads_any_state(options) { 0 } else { options.limit };
    let page_size = if selection.is_everything() { limit } else { 0 };
    let (after, topic) = (start.after.as_deref(), topic::of(call.resource, selection));
    let range = Range { prefix: &prefix, after, limit: page_size, at: start.at, topic };
    call.backend.store.prepare_read(&range).await;
    let page = call
        .backend
        .store
        .peek_range(&range)
        .map_err(|error| expired(error, options, start.after.as_deref(), &prefix, call.backend.store.revision()))?;
    stored::check_readable(&page.entries)?;
    let entries = convert::entries(call.backend, call.resource, page.entries).await?;
    let mut listed = Listed { revision: page.revision, entries, continue_token: String::new(), remaining: None };
    let mut more = page.remaining > 0;
    if !selection.is_everything() {
        let mut kept = Vec::new();
        let mut entries = listed.entries.into_iter();
        let mut slice = TimeSlice::start();
        for entry in entries.by_ref() {
            slice.check().await;
            if selection.matches(call.resource, &entry) {
                kept.push(entry);
            }
            if limit > 0 && kept.len() == limit {
                break;
            }
        }
        more = limit > 0 && entries.len() > 0;
        listed.entries = kept;
    } else if more {
        listed.remaining = Some(page.remaining);
    }
    if let Some(last) = listed.entries.last().filter(|_| more) {
        let revision = start.keeps_revision.then_some(listed.revision);
        let after = last.key[prefix.len()..].to_owned();
        listed.continue_token = ContinueToken { revision: revision.or(Some(listed.revision)), after }.encode();
    }
    Ok(listed)
}

/// Resource version 0 means any state: then the whole list is returned, whatever the limit.
fn reads_any_state(options: &ListOptions) -> bool {
    options.resource_version == Some(0) && !options.exact && options.continue_token.is_empty()
}

struct Start {
    at: Option<u64>,
    after: Option<String>,
    keeps_revision: bool,
}

async fn start(call: &ResourceRequest<'_>, options: &ListOptions, prefix: &str) -> Result<Start, Status> {
    if !options.continue_token.is_empty() {
        let token = ContinueToken::decode(&options.continue_token)?;
        if options.resource_version.is_some_and(|revision| revision != 0) {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        if token.revision.is_none() {
            call.backend.store.sync().await.map_err(store_error)?;
        }
        let after = Some(format!("{prefix}{}", token.after));
        return Ok(Start { at: token.revision, after, keeps_revision: token.revision.is_some() });
    }
    let at = match options.resource_version {
        Some(revision) if options.exact => {
            wait_for_revision(call.backend, revision).await.map_err(Status::without_retry)?;
            Some(revision)
        }
        Some(0) => None,
        // Since a page has to be the first of a consistent list, a limit with a version means exactly that version
        // unless the client says otherwise.
        Some(revision) if options.limit > 0 && !options.not_older => {
            wait_for_revision(call.backend, revision).await?;
            Some(revision)
        }
        Some(revision) => {
            wait_for_revision(call.backend, revision).await?;
            None
        }
        None => {
            call.backend.store.sync().await.map_err(store_error)?;
            None
        }
    };
    Ok(Start { at, after: None, keeps_revision: true })
}

/// A list of the one object with a name, without walking over the others.
async fn one(call: &ResourceRequest<'_>, name: &str, selection: &Selection) -> Result<Listed, Status> {
    let revision = call.backend.store.revision();
    let key = call.resource.key(&call.target.namespace, name);
    call.backend.store.prepare_read(&Range::key(&key)).await;
    let entry = call.backend.store.peek(&key);
    stored::check_readable(&entry)?;
    let found = convert::entries(call.backend, call.resource, entry.into_iter().collect()).await?;
    let entries: Vec<_> = found.into_iter().filter(|entry| selection.matches(call.resource, entry)).collect();
    let revision = entries.first().map_or(revision, |entry| revision.max(entry.revision));
    Ok(Listed { entries, revision, continue_token: String::new(), remaining: None })
}

/// The refusal of a list at a compacted revision. The rest of a paged list can be read from the newest state.
fn expired(error: Error, options: &ListOptions, after: Option<&str>, prefix: &str, newest: u64) -> Status {
    let Error::Compacted { .. } = error else { return store_error(error) };
    if options.continue_token.is_empty() {
        return Status::expired("The resourceVersion for the provided list is too old.");
    }
    let after = after.and_then(|key| key.strip_prefix(prefix)).unwrap_or_default();
    if after.is_empty() || newest == 0 {
        return Status::expired(
            "The provided continue parameter is too old to display a consistent list result. You must start a new list \
             without the continue parameter.",
        );
    }
    let status = Status::expired(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without \
         the continue parameter, or use the continue token in this response to retrieve the remainder of the results. \
         Continuing with the provided token results in an inconsistent list - objects that were created, modified, or \
         deleted between the time the first chunk was returned and now may show up in the list.",
    );
    status.with_continue(ContinueToken { revision: None, after: after.to_owned() }.encode())
}
