//! Where a value is within the object that is validated.
//!
//! A chain that borrows its parents, and becomes text only for a violation: with a text for each value, an object with one
//! long key and many values below it would be copied many times.

use std::fmt;

#[derive(Clone, Copy, Debug)]
pub(super) enum Place<'a> {
    /// The object itself.
    Root,
    /// A field, with a dot before its name unless it is the first.
    Field(&'a Place<'a>, &'a str),
    /// A field with a dot before its name.
    Dotted(&'a Place<'a>, &'a str),
    Index(&'a Place<'a>, usize),
}

impl Place<'_> {
    /// Whether this is the object itself.
    pub fn is_root(&self) -> bool {
        match self {
            Place::Root => true,
            Place::Field(parent, name) => name.is_empty() && parent.is_root(),
            Place::Dotted(..) | Place::Index(..) => false,
        }
    }

    /// The text before the name of a field of this value.
    pub fn prefix(&self) -> String {
        if self.is_root() { String::new() } else { format!("{self}.") }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Root => Ok(()),
            Place::Field(parent, name) if parent.is_root() => f.write_str(name),
            Place::Field(parent, name) | Place::Dotted(parent, name) => write!(f, "{parent}.{name}"),
            Place::Index(parent, at) => write!(f, "{parent}[{at}]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_printed_from_the_object_on() {
        let spec = Place::Field(&Place::Root, "spec");
        let list = Place::Dotted(&spec, "list");
        assert_eq!(Place::Field(&Place::Index(&list, 3), "x").to_string(), "spec.list[3].x");
        assert_eq!(Place::Dotted(&Place::Root, "x").to_string(), ".x");
        assert_eq!((Place::Root.prefix(), spec.prefix()), (String::new(), "spec.".to_owned()));
        assert_eq!(Place::Index(&Place::Root, 0).to_string(), "[0]");
    }
}
