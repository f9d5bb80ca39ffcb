//! The rules of one host, found by a request's path.
//!
//! Whoever may create Ingresses adds as many rules as they like to any host. So a search takes time that grows with the path and
//! not with the number of rules.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

pub struct Paths<T> {
    exact: HashMap<String, Arc<T>>,
    /// By the hash of the prefix, which has no slash at its end.
    prefixes: HashMap<u64, Vec<(String, Arc<T>)>>,
    /// The length of the longest prefix.
    longest: usize,
    /// Random, so that nobody can make prefixes collide.
    hashes: RandomState,
}

impl<T> Default for Paths<T> {
    fn default() -> Self {
        Self { exact: HashMap::new(), prefixes: HashMap::new(), longest: 0, hashes: RandomState::new() }
    }
}

impl<T> Paths<T> {
    /// Adds a rule, unless one for the same requests is known: slashes at the end of a prefix make no difference.
    pub fn add(&mut self, path: &str, is_exact: bool, backend: Arc<T>) {
        if is_exact {
            self.exact.entry(path.to_owned()).or_insert(backend);
            return;
        }
        let prefix = path.trim_end_matches('/');
        let Some((_, hash)) = elements(prefix, &self.hashes).last() else { return };
        let known = self.prefixes.entry(hash).or_default();
        if known.iter().all(|(known, _)| known != prefix) {
            known.push((prefix.to_owned(), backend));
            self.longest = self.longest.max(prefix.len());
        }
    }

    /// The backend of the longest matching path; of two equal ones, of the exact. A prefix matches whole path elements.
    pub fn find(&self, path: &str) -> Option<&Arc<T>> {
        if let Some(backend) = self.exact.get(path) {
            return Some(backend);
        }
        let mut found = None;
        for (end, hash) in elements(path, &self.hashes).take_while(|(end, _)| *end <= self.longest) {
            let mut known = self.prefixes.get(&hash).into_iter().flatten();
            found = known.find(|(prefix, _)| *prefix == path[..end]).map(|(_, backend)| backend).or(found);
        }
        found
    }
}

/// The ends of a path's elements, the shortest first, with the hash of the path up to there.
fn elements<'a>(path: &'a str, hashes: &RandomState) -> impl Iterator<Item = (usize, u64)> + use<'a> {
    let mut hasher = hashes.build_hasher();
    let mut hashed = 0;
    let ends = path.bytes().enumerate().filter(|(_, byte)| *byte == b'/').map(|(at, _)| at);
    ends.chain([path.len()]).map(move |end| {
        hasher.write(&path.as_bytes()[hashed..end]);
        hashed = end;
        (end, hasher.finish())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(rules: &[(&str, bool)], path: &str) -> Option<usize> {
        let mut paths = Paths::default();
        for (number, (path, is_exact)) in rules.iter().enumerate() {
            paths.add(path, *is_exact, Arc::new(number));
        }
        paths.find(path).map(|number| **number)
    }

    #[test]
    fn the_longest_path_matches_whole_elements() {
        let rules = [("/", false), ("/a", false), ("/a/b/", false), ("/a", true), ("/c", true), ("d", false)];
        for (path, expected) in [
            ("/", Some(0)),
            ("", Some(0)),
            ("//", Some(0)),
            ("/ab", Some(0)),
            ("/a", Some(3)),
            ("/a/", Some(1)),
            ("/a/bc", Some(1)),
            ("/a//b", Some(1)),
            ("/a/b", Some(2)),
            ("/a/b/c/d", Some(2)),
            ("/c", Some(4)),
            ("/c/", Some(0)),
            ("d/e", Some(5)),
            ("*", None),
        ] {
            assert_eq!(found(&rules, path), expected, "{path}");
        }
    }

    /// Another spelling of the same prefix is no longer path.
    #[test]
    fn slashes_at_the_end_take_nothing_from_an_older_rule() {
        let hostile = [("//", false), ("/////", false), ("/shop/", false), ("/shop///", false)];
        let rules: Vec<(&str, bool)> =
            [("/", false), ("/shop", false), ("/exact", true)].into_iter().chain(hostile).collect();
        for (path, expected) in [("/", 0), ("/x/y", 0), ("//", 0), ("/shop", 1), ("/shop/a", 1), ("/exact", 2)] {
            assert_eq!(found(&rules, path), Some(expected), "{path}");
        }
    }

    /// Neither many rules of others nor a path of many elements make a request expensive.
    #[test]
    fn a_search_does_not_grow_with_the_rules() {
        let mut paths = Paths::default();
        for number in 0..100_000 {
            paths.add(&format!("/some/longer/path/{number}"), number % 2 == 0, Arc::new(1));
        }
        paths.add("/", false, Arc::new(0));
        paths.add(&"/x".repeat(100_000), false, Arc::new(2));
        let long = "/".repeat(60_000);
        let started = std::time::Instant::now();
        for _ in 0..10_000 {
            assert_eq!(paths.find("/shop/cart").map(|number| **number), Some(0));
        }
        for _ in 0..10 {
            assert_eq!(paths.find(&long).map(|number| **number), Some(0));
        }
        assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
    }
}
