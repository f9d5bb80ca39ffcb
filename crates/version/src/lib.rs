//! The Kubernetes release whose behaviour Knarr has. The file `KUBERNETES_VERSION` beside this one is the only place to change.

use std::sync::OnceLock;

/// The release in full: `v1.36.4`.
pub const KUBERNETES: &str = include_str!("KUBERNETES_VERSION").trim_ascii();

/// The release that is reported in place of [`KUBERNETES`], for builds of others: `v1.36.4-example.1`.
static REPORTED: OnceLock<String> = OnceLock::new();

/// Reports another name of the same release. The first call counts, before anything is reported.
pub fn report_as(version: String) {
    let _ = REPORTED.set(version);
}

/// The release that clients are shown.
pub fn reported() -> &'static str {
    REPORTED.get().map_or(KUBERNETES, String::as_str)
}

/// The major number: `1`.
pub const MAJOR: &str = KUBERNETES.split_at(dot(0)).0.split_at(1).1;

/// The minor number: `36`.
pub const MINOR: &str = KUBERNETES.split_at(dot(1)).0.split_at(dot(0) + 1).1;

/// Major and minor number as OpenAPI and user agents show them: `1.36`.
pub const RELEASE: &str = KUBERNETES.split_at(dot(1)).0.split_at(1).1;

/// The minor release before this one: `1.35`.
pub fn previous_release() -> String {
    let minor: u64 = MINOR.parse().unwrap_or_default();
    format!("{MAJOR}.{}", minor.saturating_sub(1))
}

/// The CPU architecture by Go's name: `amd64`.
pub const ARCHITECTURE: &str = go_architecture(std::env::consts::ARCH);

/// The platform as clients are shown it: `linux/amd64`.
pub fn platform() -> String {
    format!("{}/{ARCHITECTURE}", std::env::consts::OS)
}

const fn go_architecture(name: &'static str) -> &'static str {
    match name.as_bytes() {
        b"x86_64" => "amd64",
        b"aarch64" => "arm64",
        b"x86" => "386",
        _ => name,
    }
}

/// Where the dot with this index stands.
const fn dot(index: usize) -> usize {
    let (text, mut at, mut seen) = (KUBERNETES.as_bytes(), 0, 0);
    loop {
        if text[at] == b'.' {
            if seen == index {
                return at;
            }
            seen += 1;
        }
        at += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_have_the_names_of_go() {
        for (rust, go) in [("x86_64", "amd64"), ("aarch64", "arm64"), ("arm", "arm"), ("s390x", "s390x")] {
            assert_eq!(go_architecture(rust), go);
        }
        assert_eq!(platform(), format!("{}/{}", std::env::consts::OS, ARCHITECTURE));
    }

    #[test]
    fn the_numbers_are_parts_of_the_release() {
        assert_eq!(format!("{MAJOR}.{MINOR}"), RELEASE);
        assert!(KUBERNETES.starts_with(&format!("v{RELEASE}.")), "{KUBERNETES}");
        assert!([MAJOR, MINOR].iter().all(|number| number.parse::<u8>().is_ok()));
        let previous = previous_release();
        let minor = previous.strip_prefix(&format!("{MAJOR}.")).and_then(|minor| minor.parse::<u8>().ok());
        assert_eq!(minor.map(|minor| minor + 1), MINOR.parse().ok());
    }
}
