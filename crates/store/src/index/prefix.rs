//! Key prefixes: the bounds of a range, and the group a key belongs to.

use std::ops::Bound;

/// How many slashes a group's name has, as in `/registry/pods/`.
const GROUP_SLASHES: usize = 3;

/// The prefix of a key that names its group, including the last slash: `/registry/pods/` of `/registry/pods/ns/name`.
/// `None` when the key is too short to have one.
pub(crate) fn group_of(key: &str) -> Option<&str> {
    let slash = key.bytes().enumerate().filter(|(_, byte)| *byte == b'/').nth(GROUP_SLASHES - 1)?.0;
    Some(&key[..=slash])
}

/// The first key after all that start with `prefix`; `None` when there is none.
pub(crate) fn after_all(prefix: &str) -> Option<String> {
    let mut characters: Vec<char> = prefix.chars().collect();
    while let Some(last) = characters.pop() {
        // Skips the surrogates, which are not characters.
        if let Some(next) = (last as u32 + 1..=char::MAX as u32).find_map(char::from_u32) {
            characters.push(next);
            return Some(characters.into_iter().collect());
        }
    }
    None
}

/// The keys a range covers, as bounds for an ordered map.
pub(crate) struct Bounds {
    start: String,
    start_included: bool,
    end: Option<String>,
}

impl Bounds {
    /// Keys that start with `prefix` and come after `after`.
    pub(crate) fn new(prefix: &str, after: Option<&str>) -> Self {
        let end = after_all(prefix);
        match after {
            // A map panics on a start past its end; starting at the excluded end gives an empty range.
            Some(after) if end.as_deref().is_some_and(|end| after >= end) => {
                Self { start: end.clone().unwrap_or_default(), start_included: true, end }
            }
            Some(after) if after >= prefix => Self { start: after.to_owned(), start_included: false, end },
            _ => Self { start: prefix.to_owned(), start_included: true, end },
        }
    }

    pub(crate) fn contains(&self, key: &str) -> bool {
        let started = if self.start_included { key >= self.start.as_str() } else { key > self.start.as_str() };
        started && self.end.as_deref().is_none_or(|end| key < end)
    }

    pub(crate) fn as_range(&self) -> (Bound<&str>, Bound<&str>) {
        let start = self.start.as_str();
        let start = if self.start_included { Bound::Included(start) } else { Bound::Excluded(start) };
        (start, self.end.as_deref().map_or(Bound::Unbounded, Bound::Excluded))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_the_first_two_segments() {
        for (key, group) in [
            ("/registry/pods/default/web", Some("/registry/pods/")),
            ("/registry/pods/", Some("/registry/pods/")),
            ("/registry/pods", None),
            ("/registry/", None),
            ("plain", None),
            ("", None),
            ("a/b/c/d", Some("a/b/c/")),
        ] {
            assert_eq!(group_of(key), group, "{key}");
        }
    }

    #[test]
    fn the_key_after_a_prefix() {
        for (prefix, next) in [
            ("/a/", Some("/a0")),
            ("a", Some("b")),
            ("a\u{10FFFF}", Some("b")),
            ("\u{D7FF}", Some("\u{E000}")),
            ("\u{10FFFF}", None),
            ("", None),
        ] {
            assert_eq!(after_all(prefix).as_deref(), next, "{prefix}");
        }
    }

    #[test]
    fn bounds_hold_what_has_the_prefix_and_comes_after() {
        let keys = ["/a", "/a/", "/a/x", "/a/y", "/a0", "/b"];
        for (prefix, after, expected) in [
            ("/a/", None, vec!["/a/", "/a/x", "/a/y"]),
            ("/a/", Some("/a/x"), vec!["/a/y"]),
            ("/a/", Some("/a/y"), vec![]),
            ("/a/", Some("/0"), vec!["/a/", "/a/x", "/a/y"]),
            ("/a/", Some("/a0"), vec![]),
            ("/a/", Some("/z"), vec![]),
            ("", None, keys.to_vec()),
            ("", Some("/a0"), vec!["/b"]),
        ] {
            let bounds = Bounds::new(prefix, after);
            let map: std::collections::BTreeMap<&str, ()> = keys.iter().map(|key| (*key, ())).collect();
            let ranged: Vec<&str> = map.range::<str, _>(bounds.as_range()).map(|(key, ())| *key).collect();
            let contained: Vec<&str> = keys.iter().copied().filter(|key| bounds.contains(key)).collect();
            assert_eq!(ranged, expected, "{prefix} after {after:?}");
            assert_eq!(contained, expected, "{prefix} after {after:?}");
        }
    }
}
