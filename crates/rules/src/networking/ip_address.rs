//! IPAddress: an allocated cluster IP and the object that uses it.

use jiff::Timestamp;
use knarr_api::field::{Errors, Path};
use knarr_api::names::{self, Check};
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::addresses;
use crate::common::checks::{self, IMMUTABLE};
use crate::common::columns::{self, NAME, field};
use crate::common::go_json::struct_json;
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of IpAddress.
pub struct IpAddress;

impl KindRules for IpAddress {
    fn validate(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec.parentRef");
        let parent = object.at(&["spec", "parentRef"]);
        if parent.is_null() {
            errors.required(&path, "");
            return errors;
        }
        let group = parent.text(&["group"]);
        if !group.is_empty() {
            names::check(&mut errors, &path.child("group"), group, names::dns_subdomain);
        }
        for field in ["resource", "name"] {
            checks::required_name(&mut errors, &path.child(field), parent.text(&[field]), names::path_segment);
        }
        let namespace = parent.text(&["namespace"]);
        if !namespace.is_empty() {
            names::check(&mut errors, &path.child("namespace"), namespace, names::path_segment);
        }
        errors
    }

    fn validate_update(&self, object: &Value, old: &Value, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let parent = object.at(&["spec", "parentRef"]);
        if parent != old.at(&["spec", "parentRef"]) {
            let part = |field: &str| Value::from(parent.text(&[field]));
            let rendered = if parent.is_null() {
                "null".to_owned()
            } else {
                struct_json(&[
                    ("Group", part("group")),
                    ("Resource", part("resource")),
                    ("Namespace", part("namespace")),
                    ("Name", part("name")),
                ])
            };
            errors.invalid_verbatim(&Path::root("spec.parentRef"), rendered, IMMUTABLE);
        }
        errors
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn name_check(&self) -> Check {
        |name| {
            let mut errors = Errors::new();
            addresses::canonical_address(&mut errors, &Path::default(), name);
            errors.0.into_iter().map(|error| error.detail).collect()
        }
    }

    fn columns(&self) -> &'static [Column] {
        const { &[NAME, field("ParentRef", "string", "io.k8s.api.networking.v1.IPAddressSpec", "parentRef")] }
    }

    /// One cell more than there are columns, as in Kubernetes' tables.
    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let parent = object.at(&["spec", "parentRef"]);
        let rendered = if parent.is_null() {
            "<none>".to_owned()
        } else {
            let mut rendered = parent.text(&["resource"]).to_lowercase();
            for (mark, field) in [('.', "group"), ('/', "namespace")] {
                if !parent.text(&[field]).is_empty() {
                    rendered.push(mark);
                    rendered.push_str(parent.text(&[field]));
                }
            }
            format!("{rendered}/{}", parent.text(&["name"]))
        };
        vec![columns::name(object), rendered.into(), columns::age(object, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn addresses_name_their_parent() {
        let address =
            |name: &str| json!({"spec": {"parentRef": {"resource": "services", "namespace": "ns", "name": name}}});
        assert!(messages(&IpAddress, &address("a"), None).is_empty());
        assert_eq!(messages(&IpAddress, &json!({"spec": {}}), None), ["spec.parentRef: Required value"]);
        assert_eq!(
            messages(&IpAddress, &address("b"), Some(&address("a"))),
            [
                "spec.parentRef: Invalid value: {\"Group\":\"\",\"Resource\":\"services\",\"Namespace\":\"ns\",\"Name\":\"b\"}: \
              field is immutable"
            ]
        );
        assert_eq!(IpAddress.cells(&address("a"), Timestamp::UNIX_EPOCH)[1], "services/ns/a");
        assert!(IpAddress.name_check()("10.0.0.1").is_empty());
        assert!(!IpAddress.name_check()("10.0.0.01").is_empty());
    }
}
