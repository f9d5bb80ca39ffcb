//! For which images that are on the node a pod must show credentials.

use crate::image_reference::without_tag;

/// The policy `imagePullCredentialsVerificationPolicy`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Verification {
    Never,
    /// Not for images that the kubelet did not pull.
    #[default]
    NeverPreloaded,
    /// Not for images of these names; a trailing `/*` matches any rest.
    NeverListed(Vec<String>),
    Always,
}

impl Verification {
    /// The policy by its name, with the list of images for the policy that has one.
    pub fn parse(name: &str, list: &[String]) -> Result<Self, String> {
        if name != "NeverVerifyAllowlistedImages" && !list.is_empty() {
            return Err("invalid configuration: can't set `preloadedImagesVerificationAllowlist` if `imagePullCredentialsVertificationPolicy` is not \
                \"NeverVerifyAllowlistedImages\""
                .to_owned());
        }
        match name {
            "NeverVerify" => Ok(Self::Never),
            "" | "NeverVerifyPreloadedImages" => Ok(Self::NeverPreloaded),
            "AlwaysVerify" => Ok(Self::Always),
            "NeverVerifyAllowlistedImages" => {
                let invalid = "invalid configuration: invalid image pattern in `preloadedImagesVerificationAllowlist`";
                list.iter().try_for_each(|pattern| check(pattern)).map_err(|why| format!("{invalid}: {why}"))?;
                Ok(Self::NeverListed(list.to_vec()))
            }
            other => Err(format!(
                "invalid configuration: option {other:?} specified for imagePullCredentialsVerificationPolicy. Valid options \
                 are \"NeverVerify\", \"NeverVerifyPreloadedImages\", \"NeverVerifyAllowlistedImages\" or \"AlwaysVerify\""
            )),
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Never => "NeverVerify",
            Self::NeverPreloaded => "NeverVerifyPreloadedImages",
            Self::NeverListed(_) => "NeverVerifyAllowlistedImages",
            Self::Always => "AlwaysVerify",
        }
    }

    pub fn requires_credentials(&self, image: &str, is_pulled_here: bool) -> bool {
        match self {
            Self::Never => false,
            Self::NeverPreloaded => is_pulled_here,
            Self::Always => true,
            Self::NeverListed(list) => {
                let name = without_tag(image);
                !list.iter().any(|pattern| match pattern.strip_suffix('*') {
                    Some(prefix) => name.starts_with(prefix),
                    None => name == *pattern,
                })
            }
        }
    }
}

fn check(pattern: &str) -> Result<(), String> {
    if pattern.trim() != pattern {
        return Err(format!("leading/trailing spaces are not allowed: {pattern}"));
    }
    let prefix = pattern.strip_suffix("/*").map(|_| &pattern[..pattern.len() - 1]);
    let rest = prefix.unwrap_or(pattern);
    if rest.is_empty() {
        return Err(format!("the supplied pattern is too short: {pattern}"));
    }
    if rest.contains('*') {
        return Err(format!("not a valid wildcard pattern, only patterns ending with '/*' are allowed: {pattern}"));
    }
    match prefix {
        Some("/") => Err("at least registry hostname is required".to_owned()),
        None if without_tag(pattern) != pattern => {
            Err(format!("neither tag nor digest is accepted in an image reference: {pattern}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_decide_by_origin_or_name() {
        let list = ["r.io/a".to_owned(), "r.io/team/*".to_owned()];
        for (name, list, image, pulled, expected) in [
            ("NeverVerify", &[][..], "r.io/a:1", true, false),
            ("", &[], "r.io/a:1", true, true),
            ("NeverVerifyPreloadedImages", &[], "r.io/a:1", false, false),
            ("AlwaysVerify", &[], "r.io/a:1", false, true),
            ("NeverVerifyAllowlistedImages", &list[..], "r.io/a:1", true, false),
            ("NeverVerifyAllowlistedImages", &list, "r.io/a@sha256:00", true, false),
            ("NeverVerifyAllowlistedImages", &list, "r.io/ab:1", false, true),
            ("NeverVerifyAllowlistedImages", &list, "r.io/team/x:1", true, false),
        ] {
            let policy = Verification::parse(name, list).expect("a policy");
            assert_eq!(policy.requires_credentials(image, pulled), expected, "{name} {image} {pulled}");
        }
        assert!(Verification::parse("Sometimes", &[]).is_err());
        assert!(Verification::parse("AlwaysVerify", &list).is_err());
        for pattern in [" a", "*", "a*b", "/*", "r.io/a:1", ""] {
            assert!(Verification::parse("NeverVerifyAllowlistedImages", &[pattern.to_owned()]).is_err(), "{pattern}");
        }
    }
}
