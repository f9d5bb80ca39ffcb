//! Versions of the container runtime with published escapes.

/// A version, compared by its numbers. A pre-release counts as the release before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub [u32; 3]);

/// The oldest releases of runc, by minor version, with the fixes of 2025 for escapes from the container (CVE-2025-31133,
/// CVE-2025-52565, CVE-2025-52881) and of all years before. Newer minor versions started with them.
pub const RUNC: [Version; 3] = [Version([1, 2, 8]), Version([1, 3, 3]), Version([1, 4, 0])];

/// The same for containerd (CVE-2024-25621, CVE-2024-40635, CVE-2025-64329).
pub const CONTAINERD: [Version; 4] = [Version([1, 7, 29]), Version([2, 0, 7]), Version([2, 1, 5]), Version([2, 2, 0])];

impl Version {
    /// Finds a version such as `1.6.20` in the output of a program.
    pub fn find(text: &str) -> Option<Version> {
        text.split_whitespace().find_map(Version::parse)
    }

    fn parse(word: &str) -> Option<Version> {
        let word = word.strip_prefix('v').unwrap_or(word);
        // Debian appends its own: 1.6.20~ds1.
        let word = word.split(['~', '+', '-']).next()?;
        let mut numbers = word.split('.').map(str::parse);
        let version = [numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?];
        numbers.next().is_none().then_some(Version(version))
    }

    /// Whether this version has all fixes, given the first release of each minor version that has them.
    pub fn has_fixes(&self, first: &[Version]) -> bool {
        let minor = |version: &Version| (version.0[0], version.0[1]);
        match first.iter().find(|fixed| minor(fixed) == minor(self)) {
            Some(fixed) => self >= fixed,
            None => first.last().is_some_and(|newest| self > newest),
        }
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(formatter, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_print() {
        for (text, expected) in [
            ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1", Some([1, 6, 20])),
            (
                "containerd github.com/containerd/containerd/v2 v2.1.5 fcd43222d6b07379a4be9786bda52438f0dd16a1",
                Some([2, 1, 5]),
            ),
            ("runc version 1.1.5+ds1\ncommit: 1.1.5+ds1-1+deb12u1", Some([1, 1, 5])),
            ("runc version 1.4.0-rc.3", Some([1, 4, 0])),
            ("nothing here", None),
        ] {
            assert_eq!(Version::find(text).map(|version| version.0), expected, "{text}");
        }
    }

    #[test]
    fn runtimes_with_published_holes_are_recognised() {
        for (version, first, has_fixes) in [
            ([1, 1, 5], &RUNC[..], false),
            ([1, 2, 7], &RUNC, false),
            ([1, 2, 8], &RUNC, true),
            ([1, 3, 2], &RUNC, false),
            ([1, 4, 1], &RUNC, true),
            ([1, 5, 0], &RUNC, true),
            ([1, 6, 20], &CONTAINERD, false),
            ([1, 7, 29], &CONTAINERD, true),
            ([2, 0, 6], &CONTAINERD, false),
            ([2, 3, 0], &CONTAINERD, true),
        ] {
            assert_eq!(Version(version).has_fixes(first), has_fixes, "{version:?}");
        }
    }
}
