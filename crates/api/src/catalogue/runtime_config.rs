//! Which built-in versions and resources are served: Kubernetes' defaults, and what `--runtime-config` changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::table::{self, Needs, Table};
use super::{Catalogue, Group, Kind};

const ALL: &str = "api/all";
/// The keys that select many versions, in the order in which they apply.
const MATCHERS: [(&str, fn(&str) -> bool); 4] = [
    (ALL, |_| true),
    ("api/ga", |version| stage(version) == Some("")),
    ("api/beta", |version| stage(version) == Some("beta")),
    ("api/alpha", |version| stage(version) == Some("alpha")),
];
/// Every group version that Kubernetes knows has this kind, whether the version is served or not.
const IN_EVERY_VERSION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";

/// The requested changes, which were checked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// The keys of `MATCHERS`.
    matching: BTreeMap<&'static str, bool>,
    /// By group and version.
    versions: BTreeMap<(String, String), bool>,
    /// By group, version and plural.
    resources: BTreeMap<[String; 3], bool>,
}

/// What is served.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The served kinds.
    pub catalogue: Catalogue,
    /// Resources that were selected with many others and that this program lacks, as `group/version/resource`.
    pub absent: Vec<String>,
}

/// A value of `--runtime-config` that is refused; the messages are those of Kubernetes, but for the last one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeConfigError {
    #[error("invalid runtime-config with only {ALL}=false")]
    Nothing,
    #[error("runtime-config invalid key {0}")]
    InvalidKey(String),
    #[error("unknown api groups {0}")]
    UnknownGroups(String),
    #[error("invalid value {0}={1}")]
    InvalidMatcher(&'static str, String),
    #[error("group version {0} that has not been registered")]
    UnknownVersion(String),
    #[error("invalid value of {0}: {1}, err: strconv.ParseBool: parsing {1:?}: invalid syntax")]
    InvalidValue(String, String),
    #[error("invalid key {0}: group/version/resource and resource is always lowercase plural, not {1:?}")]
    NotLowercase(String, String),
    #[error("--runtime-config={0}=true is not supported: this program does not serve it")]
    Absent(String),
}

/// The kinds of the versions that are not served by default.
fn optional() -> &'static Table {
    static TABLE: LazyLock<Table> = LazyLock::new(|| {
        table::parse(include_str!("optional_kinds.txt")).expect("optional_kinds.txt is part of the program")
    });
    &TABLE
}

impl RuntimeConfig {
    /// Checks entries of the form `key=value`; of a key that is given twice the last one counts.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, RuntimeConfigError> {
        let split = |entry: &'a str| entry.split_once('=').unwrap_or((entry, ""));
        let entries: BTreeMap<&str, &str> = entries
            .into_iter()
            .map(split)
            .filter_map(|(key, value)| Some((present_key(key.trim())?, value.trim())))
            .collect();
        if entries.len() == 1 && entries.get(ALL) == Some(&"false") {
            return Err(RuntimeConfigError::Nothing);
        }
        let is_matcher = |key: &str| MATCHERS.iter().any(|(matcher, _)| *matcher == key);
        let paths = parse_paths(entries.iter().filter(|(key, _)| !is_matcher(key)))?;
        let mut config = RuntimeConfig::default();
        for (matcher, _) in MATCHERS {
            let on = match entries.get(matcher) {
                None => continue,
                Some(&"true") => true,
                Some(&"false") => false,
                Some(other) => return Err(RuntimeConfigError::InvalidMatcher(matcher, (*other).to_owned())),
            };
            config.matching.insert(matcher, on);
        }
        for (key, path, value) in paths {
            config.add(key, &path, value)?;
        }
        Ok(config)
    }

    fn add(&mut self, key: &str, path: &[&str], value: &str) -> Result<(), RuntimeConfigError> {
        let (group, version) = (path[0].to_owned(), path[1].to_owned());
        if !registered().any(|known| known == (path[0], path[1])) {
            let named = if group.is_empty() { version } else { format!("{group}/{version}") };
            return Err(RuntimeConfigError::UnknownVersion(named));
        }
        let invalid = || RuntimeConfigError::InvalidValue(key.to_owned(), value.to_owned());
        let on = if value.is_empty() { true } else { parse_bool(value).ok_or_else(invalid)? };
        match path.get(2) {
            None => self.versions.insert((group, version), on),
            Some(plural) if *plural != plural.to_lowercase() => {
                return Err(RuntimeConfigError::NotLowercase(key.to_owned(), (*plural).to_owned()));
            }
            Some(plural) => self.resources.insert([group, version, (*plural).to_owned()], on),
        };
        Ok(())
    }

    /// The kinds that are served with these feature gates.
    pub fn select(&self, is_on: &dyn Fn(&str) -> bool) -> Result<Selection, RuntimeConfigError> {
        let built_in = Catalogue::built_in();
        if *self == RuntimeConfig::default() {
            return Ok(Selection { catalogue: built_in, absent: Vec::new() });
        }
        let mut groups: BTreeMap<String, Group> = BTreeMap::new();
        let mut absent = Vec::new();
        for (group, is_optional) in
            built_in.groups().iter().map(|group| (group, false)).chain(optional().groups.iter().map(|g| (g, true)))
        {
            for version in &group.versions {
                let mut served = version.clone();
                served.kinds.clear();
                for kind in &version.kinds {
                    match self.serves(kind, !is_optional, is_on)? {
                        Serves::Yes => served.kinds.push(kind.clone()),
                        Serves::Absent(path) => absent.push(path),
                        Serves::No => {}
                    }
                }
                if !served.kinds.is_empty() {
                    let of = groups.entry(group.name.clone());
                    of.or_insert_with(|| Group { versions: Vec::new(), ..group.clone() }).versions.push(served);
                }
            }
        }
        Ok(Selection { catalogue: Catalogue::from_groups(groups.into_values().collect()), absent })
    }

    fn serves(
        &self,
        kind: &Kind,
        by_default: bool,
        is_on: &dyn Fn(&str) -> bool,
    ) -> Result<Serves, RuntimeConfigError> {
        let path = [kind.group.clone(), kind.version.clone(), kind.plural.clone()];
        let of_version = self.versions.get(&(kind.group.clone(), kind.version.clone()));
        let of_resource = self.resources.get(&path);
        let matching = MATCHERS.iter().filter(|(_, matches)| matches(&kind.version));
        let matching = matching.filter_map(|(matcher, _)| self.matching.get(matcher)).next_back();
        let is_selected = of_resource.or(of_version).or(matching).copied().unwrap_or(by_default);
        let none = Needs::default();
        let needs = optional().needs.get(&path).filter(|_| !by_default).unwrap_or(&none);
        if !is_selected || needs.gate.as_deref().is_some_and(|gate| !is_on(gate)) {
            return Ok(Serves::No);
        }
        if !needs.is_absent {
            return Ok(Serves::Yes);
        }
        // A version of which nothing can be served was asked for by name.
        let others = optional().groups.iter().filter(|group| group.name == kind.group);
        let others = others.flat_map(|group| &group.versions).filter(|version| version.name == kind.version);
        let is_only_one = others.flat_map(|version| &version.kinds).all(|other| {
            let path = [other.group.clone(), other.version.clone(), other.plural.clone()];
            optional().needs.get(&path).is_some_and(|needs| needs.is_absent)
        });
        match (of_resource, of_version) {
            (Some(true), _) => Err(RuntimeConfigError::Absent(path.join("/"))),
            (None, Some(true)) if is_only_one => Err(RuntimeConfigError::Absent(path[..2].join("/"))),
            _ => Ok(Serves::Absent(path.join("/"))),
        }
    }
}

enum Serves {
    Yes,
    No,
    /// Kubernetes would.
    Absent(String),
}

/// A key, its two or three parts, and the value.
type Entry<'a> = (&'a str, Vec<&'a str>, &'a str);

/// The keys that name a version or a resource, in parts.
fn parse_paths<'m, 'a: 'm>(
    entries: impl Iterator<Item = (&'m &'a str, &'m &'a str)>,
) -> Result<Vec<Entry<'a>>, RuntimeConfigError> {
    let mut paths = Vec::new();
    let mut unknown = BTreeSet::new();
    for (key, value) in entries {
        let path: Vec<&str> = key.split('/').collect();
        if !(2..=3).contains(&path.len()) {
            return Err(RuntimeConfigError::InvalidKey((*key).to_owned()));
        }
        if !registered().any(|(group, _)| group == path[0]) {
            unknown.insert(path[..2].join("/"));
        }
        paths.push((*key, path, *value));
    }
    if unknown.is_empty() {
        return Ok(paths);
    }
    Err(RuntimeConfigError::UnknownGroups(unknown.into_iter().collect::<Vec<_>>().join(",")))
}

/// The group versions that Kubernetes knows.
fn registered() -> impl Iterator<Item = (&'static str, &'static str)> {
    let info = crate::schema::builtin().type_named(IN_EVERY_VERSION);
    info.into_iter().flat_map(|info| &info.kinds).map(|kind| (&*kind.group, &*kind.version))
}

/// The key of an older one: the core group had several names, and a key for versions that are gone has no effect.
fn present_key(key: &str) -> Option<&str> {
    let is_core = |name: &str| key == name || key.strip_prefix(name).is_some_and(|rest| rest.starts_with('/'));
    match key {
        "api/legacy" => None,
        _ if is_core("v1") || is_core("api/v1") => Some("/v1"),
        _ => Some(key),
    }
}

/// What follows the first number of a version: nothing, `alpha` or `beta`; `None` for other names.
fn stage(version: &str) -> Option<&str> {
    let rest = version.strip_prefix('v')?;
    let numbers = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if numbers(rest) {
        return Some("");
    }
    ["alpha", "beta"]
        .into_iter()
        .find(|word| rest.split_once(word).is_some_and(|(major, minor)| numbers(major) && numbers(minor)))
}

/// As Go parses it.
fn parse_bool(value: &str) -> Option<bool> {
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(value: &str, gates: &[&str]) -> Result<Selection, RuntimeConfigError> {
        RuntimeConfig::parse(value.split(',').filter(|entry| !entry.is_empty()))?.select(&|gate| gates.contains(&gate))
    }

    #[test]
    fn versions_and_resources_are_selected() {
        for (value, gates, path, serves) in [
            ("", &[][..], "batch/v1/jobs", true),
            ("", &[], "resource.k8s.io/v1beta1/deviceclasses", false),
            ("batch/v1=false", &[], "batch/v1/jobs", false),
            ("batch/v1=false", &[], "apps/v1/deployments", true),
            ("batch/v1/jobs=false", &[], "batch/v1/jobs", false),
            ("batch/v1/jobs=false", &[], "batch/v1/cronjobs", true),
            ("batch/v1=false,batch/v1/jobs=true", &[], "batch/v1/jobs", true),
            ("batch/v1=false,batch/v1/jobs=true", &[], "batch/v1/cronjobs", false),
            ("resource.k8s.io/v1beta1=true", &[], "resource.k8s.io/v1beta1/deviceclasses", true),
            ("resource.k8s.io/v1beta1", &[], "resource.k8s.io/v1beta1/deviceclasses", true),
            ("resource.k8s.io/v1beta1/deviceclasses=1", &[], "resource.k8s.io/v1beta1/deviceclasses", true),
            ("resource.k8s.io/v1beta1/deviceclasses=1", &[], "resource.k8s.io/v1beta1/resourceslices", false),
            ("api/beta=true", &[], "networking.k8s.io/v1beta1/ipaddresses", true),
            ("api/beta=true", &[], "admissionregistration.k8s.io/v1alpha1/mutatingadmissionpolicies", false),
            ("api/all=true", &[], "admissionregistration.k8s.io/v1alpha1/mutatingadmissionpolicies", true),
            (
                "api/all=true,api/alpha=false",
                &[],
                "admissionregistration.k8s.io/v1alpha1/mutatingadmissionpolicies",
                false,
            ),
            ("api/all=false,api/ga=true", &[], "batch/v1/jobs", true),
            ("api/all=false,apps/v1=true", &[], "batch/v1/jobs", false),
            ("api/ga=false", &[], "/v1/pods", false),
            ("/v1=false", &[], "/v1/pods", false),
            ("api/v1", &[], "/v1/pods", true),
            ("api/v1=false", &[], "/v1/pods", false),
            ("v1=false,api/legacy=true", &[], "/v1/pods", false),
            ("v1/pods=false", &[], "/v1/secrets", false),
            ("api/all=true", &[], "certificates.k8s.io/v1beta1/clustertrustbundles", false),
            ("scheduling.k8s.io/v1alpha2=true", &[], "scheduling.k8s.io/v1alpha2/workloads", false),
            ("batch/v1beta1=true", &[], "batch/v1/jobs", true),
        ] {
            let selection = select(value, gates).unwrap();
            let parts: Vec<&str> = path.split('/').collect();
            let found = selection.catalogue.resource(parts[0], parts[1], parts[2]).is_some();
            assert_eq!(found, serves, "{value}: {path}");
        }
    }

    #[test]
    fn what_is_absent_is_named() {
        let all = select("api/all=true", &["GenericWorkload"]).unwrap();
        assert_eq!(
            all.absent,
            [
                "scheduling.k8s.io/v1alpha2/podgroups",
                "scheduling.k8s.io/v1alpha2/workloads",
                "coordination.k8s.io/v1beta1/leasecandidates",
                "coordination.k8s.io/v1alpha2/leasecandidates",
                "resource.k8s.io/v1beta2/devicetaintrules",
                "resource.k8s.io/v1alpha3/devicetaintrules",
                "resource.k8s.io/v1alpha3/resourcepoolstatusrequests",
                "internal.apiserver.k8s.io/v1alpha1/storageversions",
            ]
        );
        for (value, gates, message) in [
            ("scheduling.k8s.io/v1alpha2=true", &["GenericWorkload"][..], "scheduling.k8s.io/v1alpha2"),
            ("resource.k8s.io/v1beta2/devicetaintrules=true", &[], "resource.k8s.io/v1beta2/devicetaintrules"),
            ("internal.apiserver.k8s.io/v1alpha1=true", &[], "internal.apiserver.k8s.io/v1alpha1"),
        ] {
            assert_eq!(select(value, gates).unwrap_err(), RuntimeConfigError::Absent(message.to_owned()), "{value}");
        }
    }

    /// The messages are those of kube-apiserver v1.36.
    #[test]
    fn wrong_values_are_refused() {
        for (value, message) in [
            ("api/all=false", "invalid runtime-config with only api/all=false"),
            ("api/all=maybe", "invalid value api/all=maybe"),
            ("api/beta", "invalid value api/beta="),
            ("v2=false", "runtime-config invalid key v2"),
            ("a/b/c/d=true", "runtime-config invalid key a/b/c/d"),
            ("foo/v1=true,bar/v1=false", "unknown api groups bar/v1,foo/v1"),
            ("batch/v7=true", "group version batch/v7 that has not been registered"),
            (
                "batch/v1=maybe",
                "invalid value of batch/v1: maybe, err: strconv.ParseBool: parsing \"maybe\": invalid syntax",
            ),
            (
                "batch/v1/Jobs=true",
                "invalid key batch/v1/Jobs: group/version/resource and resource is always lowercase plural, not \"Jobs\"",
            ),
        ] {
            assert_eq!(select(value, &[]).unwrap_err().to_string(), message, "{value}");
        }
    }
}
