//! `--version=vX.Y.Z…`: another name for the same release, which vendors give their builds.

use knarr_version::KUBERNETES;

/// Whether a component may report this version, or Kubernetes' message.
pub fn check(version: &str) -> Result<(), String> {
    let text = version.trim().trim_start_matches('v');
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (numbers, extra) = text.split_at(end);
    if !numbers.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(format!("could not parse {version:?} as version"));
    }
    if numbers.split('.').count() != 3 || numbers.split('.').any(str::is_empty) {
        return Err(format!("illegal version string {version:?}"));
    }
    if !is_extra(extra) {
        return Err(format!("could not parse pre-release/metadata ({extra}) in version {version:?}"));
    }
    if numbers != KUBERNETES.trim_start_matches('v') {
        return Err(format!("version {version:?} must match major/minor/patch of default version {KUBERNETES:?}"));
    }
    Ok(())
}

/// A pre-release after `-` and metadata after `+`, each of them optional.
fn is_extra(text: &str) -> bool {
    let (pre_release, metadata) = text.split_once('+').map_or((text, None), |(before, after)| (before, Some(after)));
    let is_word =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let are_words = |words: &str| words.split('.').all(is_word);
    let is_pre_release = pre_release.is_empty() || pre_release.strip_prefix('-').is_some_and(are_words);
    is_pre_release && metadata.is_none_or(are_words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_release_is_reported_under_another_name() {
        for suffix in ["", "-custom", "-gke.1100", "+vendor1", "-rc.0+build.5"] {
            assert_eq!(check(&format!("{KUBERNETES}{suffix}")), Ok(()), "{suffix}");
        }
        let mismatch = |version: &str| {
            Err(format!("version {version:?} must match major/minor/patch of default version {KUBERNETES:?}"))
        };
        assert_eq!(check("v9.9.9"), mismatch("v9.9.9"));
        assert_eq!(check("v1.0.0-custom"), mismatch("v1.0.0-custom"));
        assert_eq!(check("vfoo"), Err("could not parse \"vfoo\" as version".to_owned()));
        assert_eq!(check("v1.36"), Err("illegal version string \"v1.36\"".to_owned()));
        let wrong = format!("{KUBERNETES}_x");
        assert_eq!(check(&wrong), Err(format!("could not parse pre-release/metadata (_x) in version {wrong:?}")));
    }
}
