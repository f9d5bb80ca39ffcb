//! The order of API versions: `v2` before `v1` before `v1beta1` before `v1alpha1`.

use std::cmp::Ordering;

/// Orders API version names from oldest to newest: `v2` is above `v1`, a release above its betas, those above its alphas,
/// and names of any other form are below all of these, in reverse order of their letters.
pub fn compare_versions(a: &str, b: &str) -> Ordering {
    match (parse(a), parse(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Greater,
        (None, Some(_)) => Ordering::Less,
        (None, None) => b.cmp(a),
    }
}

/// Stability, major number, number of the alpha or beta.
fn parse(version: &str) -> Option<(u8, u64, u64)> {
    let rest = version.strip_prefix('v')?;
    for (stage, word) in [(0, "alpha"), (1, "beta")] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((stage, number(major)?, number(minor)?));
        }
    }
    Some((2, number(rest)?, 0))
}

fn number(digits: &str) -> Option<u64> {
    if digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_last() {
        let mut versions =
            ["v1", "foo10", "v11alpha2", "v10", "v3beta1", "v12alpha1", "v11beta2", "v2", "foo1", "v10beta3"];
        versions.sort_by(|a, b| compare_versions(a, b));
        assert_eq!(
            versions,
            ["foo10", "foo1", "v11alpha2", "v12alpha1", "v3beta1", "v10beta3", "v11beta2", "v1", "v2", "v10"]
        );
    }
}
