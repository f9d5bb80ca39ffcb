//! Selectors of lists and watches, and the parsed values they compare, cached with the stored entry.

pub mod projection;
pub mod topic;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use knarr_api::selector::{FieldSelector, LabelSelector, SelectableFields};
use knarr_api::status::Status;
use knarr_store::Entry;
use serde_json::Value;

use crate::kinds::Resource;
use crate::stored;

/// Cached with an entry; each field is filled on first use.
#[derive(Default)]
struct Memo {
    parsed: OnceLock<Arc<Value>>,
    values: OnceLock<SelectableValues>,
}

/// The labels and selectable fields of an object, in little memory.
struct SelectableValues {
    labels: Box<[(Box<str>, Box<str>)]>,
    /// In the order of the kind's own selectable fields.
    fields: Box<[Box<str>]>,
}

/// Which objects a list or watch selects.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selection {
    /// Parses the two selectors of a request.
    pub fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Selection, Status> {
        let labels = LabelSelector::parse(labels).map_err(|error| Status::bad_request(error.to_string()))?;
        let fields = FieldSelector::parse(fields).map_err(|error| Status::bad_request(error.to_string()))?;
        SelectableFields::of(&resource.kind).check(&fields).map_err(|error| Status::bad_request(error.to_string()))?;
        Ok(Selection { labels, fields })
    }

    pub fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// The one name that can match, if there is one.
    pub fn name(&self) -> Option<&str> {
        self.fields.exact("metadata.name")
    }

    /// Whether a stored object is selected. Each entry is parsed at most once.
    pub fn matches(&self, resource: &Resource, entry: &Entry) -> bool {
        if self.is_everything() {
            return true;
        }
        let (namespace, name) = resource.split_key(&entry.key);
        let plain = |field: &str| match field {
            "metadata.name" => Some(Cow::Borrowed(name)),
            "metadata.namespace" => Some(Cow::Borrowed(namespace)),
            _ => None,
        };
        if self.labels.is_everything() && self.fields.terms.iter().all(|term| plain(&term.field).is_some()) {
            return self.fields.matches_with(|field| plain(field).unwrap_or_default());
        }
        if !resource.is_stored_version() {
            // The cached values are those of the stored version's fields.
            let Ok(object) = stored::parse(entry) else { return false };
            let labels = object["metadata"]["labels"].as_object();
            return self.labels.matches(labels) && SelectableFields::of(&resource.kind).matches(&self.fields, &object);
        }
        let Some(memo) = entry.memo::<Memo>() else { return false };
        let values = memo.values(resource, entry);
        let label = |key: &str| {
            let at = values.labels.binary_search_by(|(own, _)| (**own).cmp(key)).ok()?;
            Some(&*values.labels[at].1)
        };
        let kind_fields = SelectableFields::of(&resource.kind);
        self.labels.matches_with(label)
            && self.fields.matches_with(|field| {
                plain(field).unwrap_or_else(|| {
                    let at = kind_fields.labels().position(|own| own == field);
                    at.and_then(|at| values.fields.get(at)).map_or(Cow::Borrowed(""), |value| Cow::Borrowed(&**value))
                })
            })
    }
}

impl Memo {
    fn values(&self, resource: &Resource, entry: &Entry) -> &SelectableValues {
        self.values.get_or_init(|| match self.parsed.get() {
            Some(object) => derive(resource, object),
            None => derive(resource, &stored::read(&entry.value()).unwrap_or_default()),
        })
    }
}

fn derive(resource: &Resource, object: &Value) -> SelectableValues {
    let mut labels: Vec<(Box<str>, Box<str>)> = object["metadata"]["labels"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| (key.as_str().into(), value.as_str().unwrap_or_default().into()))
        .collect();
    labels.sort();
    let kind_fields = SelectableFields::of(&resource.kind);
    let fields = kind_fields.labels().map(|label| kind_fields.value(label, object).into()).collect();
    SelectableValues { labels: labels.into(), fields }
}

/// The parsed object in its stored version, with its resource version. `keep` caches it with the entry.
pub fn parsed(entry: &Entry, keep: bool) -> Result<Arc<Value>, Status> {
    let memo = if keep { entry.memo::<Memo>() } else { None };
    let Some(memo) = memo else { return stored::parse(entry).map(Arc::new) };
    if let Some(object) = memo.parsed.get() {
        return Ok(object.clone());
    }
    let object = Arc::new(stored::parse(entry)?);
    Ok(memo.parsed.get_or_init(|| object).clone())
}
