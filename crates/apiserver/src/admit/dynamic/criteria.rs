//! Match criteria of policies, bindings and webhooks, and the resource version as which they match a write.

use knarr_api::catalogue::GroupVersionKind;
use knarr_api::selector::LabelSelector;
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use serde_json::Value;

use super::rule::{Rule, WriteAttributes};
use crate::admit::{Operation, Write};
use crate::object_reader::ObjectReader;
use crate::resource_request::ResourceRequest;

/// Which writes match.
#[derive(Debug)]
pub struct Criteria {
    rules: Vec<Rule>,
    excluded: Vec<Rule>,
    /// Whether a rule also matches the same resource in other versions (`matchPolicy: Equivalent`).
    equivalent: bool,
    namespaces: Result<LabelSelector, String>,
    objects: Result<LabelSelector, String>,
    /// Whether an empty list of rules matches everything, as in bindings.
    all_without_rules: bool,
}

/// The resource and kind as which a rule matches a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Matched {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub kind: GroupVersionKind,
}

impl Criteria {
    /// Reads the criteria of a webhook (`rules`) or of a policy's `matchConstraints` (`resourceRules`).
    pub fn read(value: &Value, rules: &str) -> Criteria {
        let selector = |field: &str| LabelSelector::from_object(value.at(&[field])).map_err(|error| error.to_string());
        let all = |field: &str| value.items(&[field]).iter().map(Rule::read).collect();
        Criteria {
            rules: all(rules),
            excluded: all("excludeResourceRules"),
            equivalent: value.text(&["matchPolicy"]) != "Exact",
            namespaces: selector("namespaceSelector"),
            objects: selector("objectSelector"),
            all_without_rules: rules == "resourceRules",
        }
    }

    /// The resource as which the write matches, if it does.
    pub fn matches(
        &self,
        write: &Write<'_>,
        call: &ResourceRequest<'_>,
        objects: &dyn ObjectReader,
    ) -> Result<Option<Matched>, Status> {
        let namespaces = self.match_namespace(write, objects);
        if let Ok(false) = namespaces {
            return Ok(None);
        }
        let selected = match &self.objects {
            Ok(selector) => Ok(selector.is_everything() || match_labels(selector, write)),
            Err(error) => Err(Status::internal(error)),
        };
        if let Ok(false) = selected {
            return Ok(None);
        }
        if !self.excluded.is_empty() && self.match_rules(&self.excluded, write, call)?.is_some() {
            return Ok(None);
        }
        let matched = if self.rules.is_empty() && self.all_without_rules {
            Some(own(write, call))
        } else {
            self.match_rules(&self.rules, write, call)?
        };
        // Invalid selectors are reported only for writes that the rules match.
        match matched {
            None => Ok(None),
            Some(matched) => {
                namespaces?;
                selected?;
                Ok(Some(matched))
            }
        }
    }

    fn match_namespace(&self, write: &Write<'_>, objects: &dyn ObjectReader) -> Result<bool, Status> {
        let is_namespace = write.resource == "namespaces" && write.group.is_empty();
        if write.namespace.is_empty() && !is_namespace {
            return Ok(true);
        }
        let selector = self.namespaces.as_ref().map_err(Status::internal)?;
        if selector.is_everything() {
            return Ok(true);
        }
        if is_namespace {
            let object = match write.operation {
                Operation::Create | Operation::Update if write.subresource.is_empty() => Some(&*write.object),
                _ => write.old,
            };
            return Ok(selector.matches(object.and_then(|object| object.fields(&["metadata", "labels"]))));
        }
        let namespace = objects
            .read("", "namespaces", "", write.namespace)?
            .ok_or_else(|| Status::not_found(GroupResource { group: "", name: "namespaces" }, write.namespace))?;
        Ok(selector.matches(namespace.fields(&["metadata", "labels"])))
    }

    fn match_rules(
        &self,
        rules: &[Rule],
        write: &Write<'_>,
        call: &ResourceRequest<'_>,
    ) -> Result<Option<Matched>, Status> {
        let kind = &call.resource.kind;
        let attributes = WriteAttributes {
            operation: write.operation.name(),
            group: &kind.group,
            version: &kind.version,
            resource: &kind.plural,
            subresource: write.subresource,
            namespace: write.namespace,
            name: write.known_name(),
        };
        if rules.iter().any(|rule| rule.matches(&attributes)) {
            return Ok(Some(own(write, call)));
        }
        if !self.equivalent {
            return Ok(None);
        }
        let kinds = call.backend.kinds.load();
        let mut equivalents: Vec<_> = kinds.all().filter(|other| is_equivalent(call, other)).collect();
        equivalents.sort_by(|a, b| (&a.kind.group, &a.kind.version).cmp(&(&b.kind.group, &b.kind.version)));
        for rule in rules {
            for other in &equivalents {
                let attributes =
                    WriteAttributes { group: &other.kind.group, version: &other.kind.version, ..attributes };
                if !rule.matches(&attributes) {
                    continue;
                }
                let kind = match write.subresource {
                    "" => Some(other.kind.group_version_kind()),
                    subresource => other.kind.subresource(subresource).map(|subresource| subresource.kind.clone()),
                };
                let Some(kind) = kind else {
                    let gvr = format!("{}/{}, Resource={}", other.kind.group, other.kind.version, other.kind.plural);
                    return Err(Status::internal(format!("unable to convert to {gvr}: unknown kind")));
                };
                return Ok(Some(Matched {
                    group: other.kind.group.clone(),
                    version: other.kind.version.clone(),
                    resource: other.kind.plural.clone(),
                    kind,
                }));
            }
        }
        Ok(None)
    }
}

/// The write as the client sent it.
pub fn own(write: &Write<'_>, call: &ResourceRequest<'_>) -> Matched {
    let kind = &call.resource.kind;
    let object_kind = GroupVersionKind {
        group: write.object_group.into(),
        version: write.object_version.into(),
        kind: write.kind.into(),
    };
    Matched {
        group: kind.group.clone(),
        version: kind.version.clone(),
        resource: kind.plural.clone(),
        kind: object_kind,
    }
}

/// Whether another resource is the same one in another version: both are stored under the same key.
fn is_equivalent(call: &ResourceRequest<'_>, other: &crate::kinds::Resource) -> bool {
    let (kind, other) = (&call.resource.kind, &other.kind);
    let same = kind.group == other.group && kind.version == other.version;
    kind.plural == other.plural
        && !same
        && match (&kind.storage, &other.storage) {
            (Some(own), Some(other)) => own.prefix == other.prefix,
            _ => false,
        }
}

fn match_labels(selector: &LabelSelector, write: &Write<'_>) -> bool {
    let matches = |object: &Value| !object.is_null() && selector.matches(object.fields(&["metadata", "labels"]));
    matches(write.object) || write.old.is_some_and(matches)
}
