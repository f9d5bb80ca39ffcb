//! Which fields of each kind a field selector may name, and where their values are.

use std::borrow::Cow;
use std::cmp::Ordering;

use serde_json::Value;

use super::{FieldSelector, SelectorError};
use crate::catalogue::Kind;
use crate::field::quoted;
use crate::value::Read;

/// The fields by which objects of a kind can be selected.
#[derive(Debug, Clone, Copy)]
pub struct SelectableFields<'a> {
    kind: &'a Kind,
    table: Option<&'static [Row]>,
}

#[derive(Debug)]
struct Row {
    label: &'static str,
    source: Source,
}

/// The location of a field's value in an object.
#[derive(Debug, Clone, Copy)]
enum Source {
    Text(&'static [&'static str]),
    /// `false` if it is absent.
    Flag(&'static [&'static str]),
    /// Zero if it is absent.
    Number(&'static [&'static str]),
    FirstPodIp,
    EventOrigin,
    /// Accepted in selectors, but always empty.
    Never,
}

use Source::{EventOrigin, FirstPodIp, Flag, Never, Number, Text};

const NAME: Row = row("metadata.name", Text(&["metadata", "name"]));
const NAMESPACE: Row = row("metadata.namespace", Text(&["metadata", "namespace"]));

const fn row(label: &'static str, source: Source) -> Row {
    Row { label, source }
}

/// In every version.
const RESOURCE_SLICE: &[Row] =
    &[NAME, row("spec.nodeName", Text(&["spec", "nodeName"])), row("spec.driver", Text(&["spec", "driver"]))];

/// Kinds that are not here are selected by name and namespace only.
const TABLES: &[(&str, &[Row])] = &[
    (
        "io.k8s.api.core.v1.Pod",
        &[
            NAME,
            NAMESPACE,
            row("spec.nodeName", Text(&["spec", "nodeName"])),
            row("spec.host", Text(&["spec", "nodeName"])),
            row("spec.restartPolicy", Text(&["spec", "restartPolicy"])),
            row("spec.schedulerName", Text(&["spec", "schedulerName"])),
            row("spec.serviceAccountName", Text(&["spec", "serviceAccountName"])),
            row("spec.hostNetwork", Flag(&["spec", "hostNetwork"])),
            row("status.phase", Text(&["status", "phase"])),
            row("status.podIP", FirstPodIp),
            row("status.podIPs", Never),
            row("status.nominatedNodeName", Text(&["status", "nominatedNodeName"])),
        ],
    ),
    ("io.k8s.api.core.v1.Node", &[NAME, row("spec.unschedulable", Flag(&["spec", "unschedulable"]))]),
    (
        "io.k8s.api.core.v1.ReplicationController",
        &[NAME, NAMESPACE, row("status.replicas", Number(&["status", "replicas"]))],
    ),
    (
        "io.k8s.api.core.v1.Event",
        &[
            NAME,
            NAMESPACE,
            row("involvedObject.kind", Text(&["involvedObject", "kind"])),
            row("involvedObject.namespace", Text(&["involvedObject", "namespace"])),
            row("involvedObject.name", Text(&["involvedObject", "name"])),
            row("involvedObject.uid", Text(&["involvedObject", "uid"])),
            row("involvedObject.apiVersion", Text(&["involvedObject", "apiVersion"])),
            row("involvedObject.resourceVersion", Text(&["involvedObject", "resourceVersion"])),
            row("involvedObject.fieldPath", Text(&["involvedObject", "fieldPath"])),
            row("reason", Text(&["reason"])),
            row("reportingComponent", EventOrigin),
            row("source", EventOrigin),
            row("type", Text(&["type"])),
        ],
    ),
    // Events are stored as those of the core group, which has these fields.
    (
        "io.k8s.api.events.v1.Event",
        &[
            NAME,
            NAMESPACE,
            row("regarding.kind", Text(&["involvedObject", "kind"])),
            row("regarding.namespace", Text(&["involvedObject", "namespace"])),
            row("regarding.name", Text(&["involvedObject", "name"])),
            row("regarding.uid", Text(&["involvedObject", "uid"])),
            row("regarding.apiVersion", Text(&["involvedObject", "apiVersion"])),
            row("regarding.resourceVersion", Text(&["involvedObject", "resourceVersion"])),
            row("regarding.fieldPath", Text(&["involvedObject", "fieldPath"])),
            row("reason", Text(&["reason"])),
            row("reportingController", EventOrigin),
            row("type", Text(&["type"])),
        ],
    ),
    ("io.k8s.api.core.v1.Namespace", &[NAME, row("status.phase", Text(&["status", "phase"]))]),
    ("io.k8s.api.core.v1.Secret", &[NAME, NAMESPACE, row("type", Text(&["type"]))]),
    (
        "io.k8s.api.core.v1.Service",
        &[
            NAME,
            NAMESPACE,
            row("spec.clusterIP", Text(&["spec", "clusterIP"])),
            row("spec.type", Text(&["spec", "type"])),
        ],
    ),
    ("io.k8s.api.batch.v1.Job", &[NAME, NAMESPACE, row("status.successful", Number(&["status", "succeeded"]))]),
    (
        "io.k8s.api.certificates.v1.CertificateSigningRequest",
        &[NAME, row("spec.signerName", Text(&["spec", "signerName"]))],
    ),
    ("io.k8s.api.resource.v1.ResourceSlice", RESOURCE_SLICE),
    ("io.k8s.api.resource.v1beta2.ResourceSlice", RESOURCE_SLICE),
    ("io.k8s.api.resource.v1beta1.ResourceSlice", RESOURCE_SLICE),
];

impl<'a> SelectableFields<'a> {
    /// The selectable fields of a kind.
    pub fn of(kind: &'a Kind) -> SelectableFields<'a> {
        let table = TABLES.iter().find(|(name, _)| !kind.custom && *name == kind.type_name).map(|(_, table)| *table);
        SelectableFields { kind, table }
    }

    /// Checks that all fields of a selector are selectable.
    pub fn check(&self, selector: &FieldSelector) -> Result<(), SelectorError> {
        match selector.terms.iter().find(|term| !self.has(&term.field)) {
            Some(term) => Err(self.unsupported(&term.field)),
            None => Ok(()),
        }
    }

    /// The selectable fields for an index, except name and namespace.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        let own = self.table.unwrap_or_default().iter().map(|row| row.label);
        own.chain(self.kind.selectable.iter().map(String::as_str))
            .filter(|label| !matches!(*label, "metadata.name" | "metadata.namespace"))
    }

    /// Whether a selector matches an object in its storage version.
    pub fn matches(&self, selector: &FieldSelector, object: &Value) -> bool {
        let matches =
            |term: &super::FieldRequirement| (self.value(&term.field, object) == term.value.as_str()) != term.negated;
        selector.terms.iter().all(matches)
    }

    /// The value of a field in an object of the storage version; empty if it is absent.
    pub fn value<'o>(&self, label: &str, object: &'o Value) -> Cow<'o, str> {
        match label {
            "metadata.name" => return Cow::Borrowed(object.text(&["metadata", "name"])),
            "metadata.namespace" => return Cow::Borrowed(object.text(&["metadata", "namespace"])),
            _ => {}
        }
        let row = self.table.unwrap_or_default().iter().find(|row| row.label == label);
        match row.map(|row| row.source) {
            Some(source) => read(source, object),
            None if self.kind.selectable.iter().any(|path| path == label) => {
                let path: Vec<&str> = label.split('.').collect();
                plain(object.at(&path))
            }
            None => Cow::Borrowed(""),
        }
    }

    fn has(&self, label: &str) -> bool {
        match self.table {
            Some(table) => table.iter().any(|row| row.label == label),
            None if self.kind.custom => {
                label == "metadata.name"
                    || (self.kind.namespaced && label == "metadata.namespace")
                    || self.kind.selectable.iter().any(|path| path == label)
            }
            None => matches!(label, "metadata.name" | "metadata.namespace"),
        }
    }

    fn unsupported(&self, label: &str) -> SelectorError {
        SelectorError(match (self.table.is_some() || self.kind.custom, self.kind.kind.as_str()) {
            (true, "Job") if !self.kind.custom => format!("field label {} not supported for Job", quoted(label)),
            (true, "ResourceSlice") if !self.kind.custom => {
                format!("field label not supported for {}: {label}", self.kind.group_version_kind())
            }
            (true, _) => format!("field label not supported: {label}"),
            (false, _) => format!(
                "{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
                quoted(label)
            ),
        })
    }
}

fn read(source: Source, object: &Value) -> Cow<'_, str> {
    match source {
        Text(path) => Cow::Borrowed(object.text(path)),
        Flag(path) => Cow::Borrowed(if object.flag(path) == Some(true) { "true" } else { "false" }),
        Number(path) => match object.integer(path).unwrap_or(0).cmp(&0) {
            Ordering::Equal => Cow::Borrowed("0"),
            _ => plain(object.at(path)),
        },
        FirstPodIp => Cow::Borrowed(object.items(&["status", "podIPs"]).first().map_or("", |ip| ip.text(&["ip"]))),
        EventOrigin => match object.text(&["source", "component"]) {
            "" => Cow::Borrowed(object.text(&["reportingComponent"])),
            component => Cow::Borrowed(component),
        },
        Never => Cow::Borrowed(""),
    }
}

fn plain(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => Cow::Borrowed(text),
        Value::Number(number) => Cow::Owned(number.to_string()),
        Value::Bool(flag) => Cow::Borrowed(if *flag { "true" } else { "false" }),
        _ => Cow::Borrowed(""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;
    use serde_json::json;

    #[test]
    fn unknown_fields_are_refused_with_the_message_of_each_kind() {
        let catalogue = Catalogue::built_in();
        for (group, plural, message) in [
            ("", "pods", "field label not supported: spec.nothing"),
            (
                "",
                "configmaps",
                "\"spec.nothing\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
            ),
            ("batch", "jobs", "field label \"spec.nothing\" not supported for Job"),
            (
                "resource.k8s.io",
                "resourceslices",
                "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.nothing",
            ),
        ] {
            let kind = catalogue.resource(group, "v1", plural).unwrap();
            let selector = FieldSelector::parse("spec.nothing=x").unwrap();
            assert_eq!(SelectableFields::of(kind).check(&selector).unwrap_err().0, message);
        }
    }

    #[test]
    fn values_are_read_from_objects() {
        let catalogue = Catalogue::built_in();
        let pod = json!({"metadata": {"name": "one", "namespace": "web"}, "spec": {"nodeName": "n1"},
            "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]}});
        let event =
            json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod"}, "reportingComponent": "kubelet"});
        let job = json!({"status": {}});
        for (group, plural, object, selector, selected) in [
            ("", "pods", &pod, "metadata.name=one,metadata.namespace=web", true),
            ("", "pods", &pod, "spec.nodeName=n1,status.phase!=Pending", true),
            ("", "pods", &pod, "spec.host=n2", false),
            ("", "pods", &pod, "spec.hostNetwork=false,status.podIP=10.0.0.1", true),
            ("", "events", &event, "involvedObject.kind=Pod,source=kubelet", true),
            ("events.k8s.io", "events", &event, "regarding.kind=Pod,reportingController=kubelet", true),
            ("batch", "jobs", &job, "status.successful=0", true),
        ] {
            let fields = SelectableFields::of(catalogue.resource(group, "v1", plural).unwrap());
            let selector = FieldSelector::parse(selector).unwrap();
            fields.check(&selector).unwrap();
            assert_eq!(fields.matches(&selector, object), selected, "{selector}");
        }
    }
}
