//! The schema of the built-in kinds, read once from the table beside this file.

use super::{Schema, table};
use std::sync::LazyLock;

static TABLE: &str = include_str!("types.txt");

static BUILTIN: LazyLock<Schema> = LazyLock::new(|| {
    table::parse(TABLE).unwrap_or_else(|problem| panic!("the table of built-in types is wrong: {problem}"))
});

/// The one schema that holds every built-in kind.
pub fn builtin() -> &'static Schema {
    &BUILTIN
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_table_reads_quickly_and_whole() {
        let start = Instant::now();
        let schema = table::parse(TABLE).expect("table");
        println!("table read in {:?}", start.elapsed());
        // 584 of the versions that are served by default, 186 of the others.
        assert_eq!(schema.types().filter(|info| !info.hidden).count(), 584 + 186);
        assert!(schema.kinds().count() > 150);
    }

    #[test]
    fn fields_lead_to_their_types() {
        let pod = builtin().kind("", "v1", "Pod").expect("pod");
        assert_eq!(&*pod.go_type, "v1.Pod");
        let (_, spec) = pod.field("spec").expect("spec");
        let (containers, list) = spec.field("containers").expect("containers");
        assert_eq!(&*list.go_type, "[]v1.Container");
        assert!(containers.required && containers.patch.merge);
        assert_eq!(containers.merge_key.as_deref(), Some("name"));
        assert_eq!(list.list().expect("list").kind, ListKind::Map(vec!["name".into()]));
        let (ports, _) = list.element().expect("container").field("ports").expect("ports");
        assert_eq!(ports.merge_key.as_deref(), Some("containerPort"));
        let port = pod.at(ports.node).element().expect("port");
        assert_eq!(port.field("protocol").expect("protocol").0.default, Some(Value::from("TCP")));
        assert_eq!(pod.field("metadata").expect("metadata").0.presence, Presence::Always);
        assert!(pod.field("apiVersion").is_some());
    }

    #[test]
    fn inlined_structs_give_their_fields_and_keep_their_number() {
        let volume = builtin().node_named("io.k8s.api.core.v1.Volume").expect("volume");
        let (field, _) = volume.field("emptyDir").expect("emptyDir");
        let inlined = &volume.object().expect("object").inlined[field.inlined.expect("inlined") as usize];
        assert_eq!((inlined.number, field.number), (2, 2));
        let rule = builtin().node_named("io.k8s.api.admissionregistration.v1.NamedRuleWithOperations").expect("rule");
        assert!(rule.field("apiGroups").is_some() && rule.field("operations").is_some());
    }

    #[test]
    fn a_field_may_be_granular_where_its_type_is_atomic() {
        let spec = builtin().node_named("io.k8s.api.core.v1.PersistentVolumeSpec").expect("spec");
        assert!(!spec.field("claimRef").expect("claimRef").1.is_atomic());
        assert!(builtin().node_named("io.k8s.api.core.v1.ObjectReference").expect("reference").is_atomic());
    }

    #[test]
    fn importing_copies_everything_reachable() {
        let metadata = builtin().node_named("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").expect("metadata");
        let mut builder = SchemaBuilder::default();
        let copied = builder.import(metadata);
        let schema = builder.finish();
        let owners = schema.node(copied).field("ownerReferences").expect("owners").1.element().expect("owner");
        assert!(owners.field("uid").is_some());
    }
}
