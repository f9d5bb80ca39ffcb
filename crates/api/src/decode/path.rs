//! The decoder's position in a document, and its form in error messages.

use crate::go_duration::escape;
pub(crate) use crate::go_duration::quote as quoted;
use crate::schema::Node;
use std::borrow::Cow;
use std::fmt::Write;

/// One step into the document.
#[derive(Debug, Clone)]
pub(super) enum Step<'a> {
    Field {
        /// The struct that has the field.
        owner: &'a Node,
        name: &'a str,
        /// The structs that the field is inlined from: one within the owner, one within that.
        inlined: [Option<&'a Node>; 2],
    },
    Key(Cow<'a, str>),
    Index(usize),
}

/// The path in strict decoding errors: `spec.containers[0].image`, and `name` after it.
pub(super) fn document_path(steps: &[Step<'_>], name: &str) -> Box<str> {
    let mut path = String::new();
    for step in steps {
        match step {
            Step::Field { name, .. } => push_name(&mut path, name),
            Step::Key(name) => push_name(&mut path, name),
            Step::Index(at) => {
                let _ = write!(path, "[{at}]");
            }
        }
    }
    push_name(&mut path, name);
    path.into()
}

fn push_name(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

/// The target in type errors: the struct, then the fields on the path to it.
pub(super) fn go_target(steps: &[Step<'_>], go_type: &str) -> String {
    let mut owner = None;
    let mut fields = String::new();
    for step in steps {
        if let Step::Field { owner: within, name, inlined } = step {
            owner = Some(within.struct_name());
            for part in inlined.iter().flatten().map(|node| node.struct_name()).chain([*name]) {
                fields.push('.');
                fields.push_str(part);
            }
        }
    }
    match owner {
        Some(owner) => format!("Go struct field {owner}{fields} of type {go_type}"),
        None => format!("Go value of type {go_type}"),
    }
}

/// Quotes a byte as syntax errors do.
pub(super) fn quoted_byte(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        _ => {
            let mut quoted = String::from("'");
            escape(&mut quoted, byte as char);
            quoted.push('\'');
            quoted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Shape;

    #[test]
    fn paths_and_targets_are_named() {
        let node = |go_type: &str| Node::new(Shape::Any, go_type);
        let (pod, spec, volume, source) =
            (node("v1.Pod"), node("v1.PodSpec"), node("v1.Volume"), node("v1.VolumeSource"));
        let steps = [
            Step::Field { owner: &pod, name: "spec", inlined: [None, None] },
            Step::Field { owner: &spec, name: "volumes", inlined: [None, None] },
            Step::Index(2),
            Step::Field { owner: &volume, name: "emptyDir", inlined: [Some(&source), None] },
        ];
        assert_eq!(&*document_path(&steps, "x"), "spec.volumes[2].emptyDir.x");
        assert_eq!(
            go_target(&steps, "v1.EmptyDirVolumeSource"),
            "Go struct field Volume.spec.volumes.VolumeSource.emptyDir of type v1.EmptyDirVolumeSource"
        );
        assert_eq!(go_target(&[], "v1.Pod"), "Go value of type v1.Pod");
    }

    #[test]
    fn odd_characters_are_escaped() {
        assert_eq!(quoted("a\"b\n\u{1}ü"), r#""a\"b\n\x01ü""#);
        assert_eq!(quoted_byte(b'\''), r"'\''");
        assert_eq!(quoted_byte(b'n'), "'n'");
        assert_eq!(quoted_byte(0), r"'\x00'");
        assert_eq!(quoted_byte(0xe9), "'é'");
    }
}
