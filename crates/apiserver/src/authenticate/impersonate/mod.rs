//! Impersonation: requests on behalf of another user, by users who are authorized to impersonate it.
//!
//! Each mode of impersonation (`mode`) has verbs of its own. The constrained modes allow it for certain requests only; the
//! legacy mode, with the verb `impersonate`, allows it for all. The first mode that allows the request decides.

mod mode;

use std::collections::HashMap;

use http::HeaderMap;
use knarr_api::names;
use knarr_api::status::Status;
use parking_lot::Mutex;

use self::mode::{Attempt, MODES};
use super::header::{HeaderError, texts};
use crate::authorize::Authorizer;
use crate::request::{Target, User};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
/// All headers of impersonation start with it.
const PREFIX: &str = "impersonate-";
const EXTRA_PREFIX: &str = "impersonate-extra-";

/// How many users' last modes are remembered.
const MAX_REMEMBERED: usize = 10_000;

/// An impersonated user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Impersonated {
    pub user: User,
    /// The verb that allowed it, which the audit log records; empty in the legacy mode.
    pub constraint: &'static str,
}

/// Authorizes impersonation. Remembers by which mode each user last succeeded: users keep to one, so that this one is tried
/// first, and its refusal is what a user sees when it no longer succeeds.
#[derive(Default)]
pub struct Impersonation {
    last_modes: Mutex<HashMap<String, usize>>,
}

impl Impersonation {
    /// The user that the headers request to impersonate for a request, if any.
    pub async fn impersonate(
        &self,
        requestor: &User,
        headers: &HeaderMap,
        request: &Target,
        authorizer: &dyn Authorizer,
    ) -> Result<Option<Impersonated>, Status> {
        let Some(wanted) = read(headers)? else { return Ok(None) };
        let attempt = Attempt { wanted: &wanted, requestor, request, authorizer };
        let last = self.last_modes.lock().get(&requestor.name).copied();
        let mut first_refusal = None;
        let modes = last.into_iter().chain((0..MODES.len()).filter(|index| Some(*index) != last));
        // A session outlives the request, so no constraint on the request may lead to one.
        for index in modes.filter(|index| request.path != knarr_ui::LINK_PATH || !MODES[*index].is_constrained()) {
            match attempt.by(MODES[index]).await {
                Ok(None) => {}
                Ok(Some(user)) => {
                    self.remember(&requestor.name, index);
                    return Ok(Some(Impersonated { user, constraint: MODES[index].constraint() }));
                }
                Err(refusal) => first_refusal = first_refusal.or(Some(refusal)),
            }
        }
        Err(first_refusal.unwrap_or_else(|| Status::internal("all impersonation modes failed".to_owned())))
    }

    fn remember(&self, requestor: &str, mode: usize) {
        let mut modes = self.last_modes.lock();
        if modes.get(requestor) == Some(&mode) {
            return;
        }
        if modes.len() >= MAX_REMEMBERED {
            modes.clear();
        }
        modes.insert(requestor.to_owned(), mode);
    }
}

/// The headers that name the user to impersonate; none if the request is the sender's own.
pub fn headers_of(headers: &HeaderMap) -> HeaderMap {
    let mut found = HeaderMap::new();
    if headers.get(USER).is_some_and(|name| !name.is_empty()) {
        let all = headers.iter().filter(|(name, _)| name.as_str().starts_with(PREFIX));
        found.extend(all.map(|(name, value)| (name.clone(), value.clone())));
    }
    found
}

/// Impersonates the user that these headers name, and no other.
pub fn replace(headers: &mut HeaderMap, by: &HeaderMap) {
    let own: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with(PREFIX)).cloned().collect();
    for name in own {
        headers.remove(name);
    }
    for (name, value) in by {
        headers.append(name.clone(), value.clone());
    }
}

fn read(headers: &HeaderMap) -> Result<Option<User>, Status> {
    let unreadable = |error: HeaderError| Status::bad_request(error.to_string());
    let names = texts(headers, USER).map_err(unreadable)?;
    let name = names.first().cloned().unwrap_or_default();
    if name.is_empty() && names.iter().any(|name| !name.is_empty()) {
        return Err(Status::bad_request("the header impersonate-user is given more than once, first without a name"));
    }
    let uid = texts(headers, UID).map_err(unreadable)?.into_iter().next().unwrap_or_default();
    let mut impersonated = User { name, uid, ..User::default() };
    impersonated.groups = texts(headers, GROUP).map_err(unreadable)?;
    for header in headers.keys() {
        if let Some(key) = header.as_str().strip_prefix(EXTRA_PREFIX) {
            let values = texts(headers, header.as_str()).map_err(unreadable)?;
            impersonated.extra.entry(extra_key(key)).or_default().extend(values);
        }
    }
    if impersonated.name.is_empty() {
        if impersonated.groups.is_empty() && impersonated.uid.is_empty() && impersonated.extra.is_empty() {
            return Ok(None);
        }
        return Err(Status::bad_request(format!(
            "requested {} without impersonating a user name",
            describe(&impersonated)
        )));
    }
    Ok(Some(impersonated))
}

/// The requested user in the format of Kubernetes' error message.
fn describe(impersonated: &User) -> String {
    let list = |texts: &[String]| match texts {
        [] => "[]string(nil)".to_owned(),
        texts => format!("[]string{{{}}}", texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ")),
    };
    let extra = if impersonated.extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        let pairs: Vec<String> =
            impersonated.extra.iter().map(|(key, values)| format!("{key:?}:{}", list(values))).collect();
        format!("map[string][]string{{{}}}", pairs.join(", "))
    };
    let groups = list(&impersonated.groups);
    format!("&user.DefaultInfo{{Name:\"\", UID:{:?}, Groups:{groups}, Extra:{extra}}}", impersonated.uid)
}

/// The namespace and name of the service account that a user name stands for.
fn service_account(name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let is_valid = names::dns_label(namespace).is_empty() && names::dns_subdomain(name).is_empty();
    is_valid.then_some((namespace, name))
}

/// The node that a user name stands for.
fn node(name: &str) -> Option<&str> {
    name.strip_prefix("system:node:").filter(|name| names::dns_subdomain(name).is_empty())
}

/// Header names cannot hold every character of an extra's key; clients percent-encode the others. A key with an invalid
/// escape is taken as it is.
fn extra_key(text: &str) -> String {
    decode_percent(text).unwrap_or_else(|| text.to_owned())
}

fn decode_percent(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            decoded.push(*first);
            continue;
        }
        let digits = after.get(..2).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit))?;
        decoded.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests;
