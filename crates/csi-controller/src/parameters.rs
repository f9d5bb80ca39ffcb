//! Parameters of storage classes: those for the driver, and those for the controller.

use knarr_csi::messages::StringMap;

const PREFIX: &str = "csi.storage.k8s.io/";
const FS_TYPE: &str = "csi.storage.k8s.io/fstype";
/// Calls with these secrets are sent by the controller, which may not read any Secret.
const CONTROLLER_SECRETS: [&str; 4] = [
    "csi.storage.k8s.io/provisioner-secret-name",
    "csi.storage.k8s.io/controller-publish-secret-name",
    "csi.storage.k8s.io/controller-expand-secret-name",
    "csi.storage.k8s.io/snapshotter-secret-name",
];

/// The parameters of a class.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Parameters {
    /// What the driver receives.
    pub driver: StringMap,
    pub fs_type: String,
    /// What names Secrets for calls on nodes, without the prefix: `node-stage-secret-name` and so on.
    pub node_secrets: StringMap,
}

impl Parameters {
    /// Sorts the parameters. The error is for an event.
    pub fn parse(parameters: Option<&StringMap>) -> Result<Self, String> {
        let mut sorted = Self::default();
        for (key, value) in parameters.into_iter().flatten() {
            let Some(own) = key.strip_prefix(PREFIX) else {
                sorted.driver.insert(key.clone(), value.clone());
                continue;
            };
            if CONTROLLER_SECRETS.contains(&key.as_str()) {
                return Err(format!("{key} needs the driver's own sidecars: the built-in controller reads no Secrets"));
            }
            if key == FS_TYPE {
                sorted.fs_type = value.clone();
            } else if own.starts_with("node-") {
                sorted.node_secrets.insert(own.to_owned(), value.clone());
            } else if !own.ends_with("-secret-namespace") {
                return Err(format!(
                    "found unknown parameter key \"{key}\" with reserved namespace csi.storage.k8s.io/"
                ));
            }
        }
        Ok(sorted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(entries: &[(&str, &str)]) -> StringMap {
        entries.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    #[test]
    fn reserved_parameters_do_not_reach_the_driver() {
        let parameters = map(&[
            ("tier", "fast"),
            ("csi.storage.k8s.io/fstype", "xfs"),
            ("csi.storage.k8s.io/node-stage-secret-name", "s"),
            ("csi.storage.k8s.io/node-stage-secret-namespace", "n"),
        ]);
        let parsed = Parameters::parse(Some(&parameters)).unwrap();
        assert_eq!(parsed.driver, map(&[("tier", "fast")]));
        assert_eq!(parsed.fs_type, "xfs");
        assert_eq!(parsed.node_secrets, map(&[("node-stage-secret-name", "s"), ("node-stage-secret-namespace", "n")]));
        assert!(Parameters::parse(Some(&map(&[("csi.storage.k8s.io/provisioner-secret-name", "s")]))).is_err());
        assert!(Parameters::parse(Some(&map(&[("csi.storage.k8s.io/colour", "red")]))).is_err());
    }
}
