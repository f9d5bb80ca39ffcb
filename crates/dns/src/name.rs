//! Domain names in wire format: each label prefixed by its length, then the empty root label, all in lower case.

use std::fmt;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Vec<u8>);

pub const MAX_NAME_LENGTH: usize = 255;
const MAX_LABEL_LENGTH: usize = 63;

impl Name {
    /// Parses dotted text; a trailing dot is optional. `None` if it is not a valid name.
    pub fn from_text(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let mut wire = Vec::with_capacity(text.len() + 2);
        if !text.is_empty() {
            for label in text.split('.') {
                push(&mut wire, label.as_bytes())?;
            }
        }
        wire.push(0);
        (wire.len() <= MAX_NAME_LENGTH).then_some(Self(wire))
    }

    /// From bytes that are already a name in wire format.
    pub fn from_wire(wire: Vec<u8>) -> Self {
        Self(wire)
    }

    /// Prepends labels to a name. `None` if a label is invalid.
    pub fn under(labels: &[&str], rest: &Name) -> Option<Self> {
        let mut wire = Vec::with_capacity(rest.0.len() + labels.iter().map(|label| label.len() + 1).sum::<usize>());
        for label in labels {
            push(&mut wire, label.as_bytes())?;
        }
        wire.extend_from_slice(&rest.0);
        (wire.len() <= MAX_NAME_LENGTH).then_some(Self(wire))
    }

    pub fn wire(&self) -> &[u8] {
        &self.0
    }

    /// Labels from first to last, without the root label.
    pub fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = self.0.as_slice();
        std::iter::from_fn(move || {
            let (&length, tail) = rest.split_first()?;
            if length == 0 || tail.len() < usize::from(length) {
                return None;
            }
            let (label, tail) = tail.split_at(usize::from(length));
            rest = tail;
            Some(label)
        })
    }

    /// The labels before `suffix`, if the name equals it or is below it.
    pub fn before<'a>(&'a self, suffix: &Name) -> Option<Vec<&'a str>> {
        if !self.is_under(suffix) {
            return None;
        }
        let count = self.labels().count().checked_sub(suffix.labels().count())?;
        self.labels().take(count).map(|label| std::str::from_utf8(label).ok()).collect()
    }

    pub fn is_under(&self, suffix: &Name) -> bool {
        let Some(start) = self.0.len().checked_sub(suffix.0.len()) else { return false };
        if self.0[start..] != suffix.0 {
            return false;
        }
        // The suffix must start at a label boundary.
        let mut at = 0;
        while at < start {
            at += usize::from(self.0[at]) + 1;
        }
        at == start
    }
}

fn push(wire: &mut Vec<u8>, label: &[u8]) -> Option<()> {
    if label.is_empty() || label.len() > MAX_LABEL_LENGTH {
        return None;
    }
    wire.push(u8::try_from(label.len()).ok()?);
    wire.extend(label.iter().map(u8::to_ascii_lowercase));
    Some(())
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for label in self.labels() {
            write!(formatter, "{}.", String::from_utf8_lossy(label))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_compared() {
        let zone = Name::from_text("cluster.local").unwrap();
        let name = Name::from_text("Web.Default.svc.cluster.local.").unwrap();
        assert_eq!(name.to_string(), "web.default.svc.cluster.local.");
        assert_eq!(name.before(&zone).unwrap(), ["web", "default", "svc"]);
        assert_eq!(zone.before(&zone).unwrap(), Vec::<&str>::new());
        assert!(Name::from_text("xcluster.local").unwrap().before(&zone).is_none());
        assert!(Name::from_text("local").unwrap().before(&zone).is_none());
        assert_eq!(Name::under(&["a"], &zone), Name::from_text("a.cluster.local"));
        for wrong in ["a..b", &"x".repeat(64), &"x.".repeat(200)] {
            assert!(Name::from_text(wrong).is_none());
        }
    }
}
