//! Static pods: manifests in a directory. They run without the API server, and mirror pods show them in it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use knarr_client::decode;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};
use sha2::{Digest, Sha256};

use crate::beneath;
use crate::context::Context;
use crate::pod;
use crate::pods::Pods;
use crate::settings::PodRules;

/// The interval for finding changes where inotify does not work.
const POLL_INTERVAL: Duration = Duration::from_secs(20);
const MAX_MANIFEST_SIZE: u64 = 10 << 20;

/// Runs for as long as the node does.
pub async fn watch_manifests(context: Arc<Context>, pods: Arc<Pods>, directory: std::path::PathBuf) {
    let watcher = crate::inotify::Watcher::new(&directory);
    if let Err(error) = &watcher {
        tracing::warn!(%error, directory = %directory.display(), "cannot watch the manifest directory: polling it instead");
    }
    let mut known: Manifests = HashMap::new();
    let mut removed = HashSet::new();
    loop {
        let mut desired = read_directory(&directory, &context.settings.node_name, context.settings.pod_rules);
        // A manifest that was removed ends its pod, also if it is there again.
        known.retain(|uid, manifest| {
            let stays = desired.contains_key(uid) && !removed.contains(&manifest.file);
            if !stays {
                pods.remove(uid);
            }
            stays
        });
        // A pod of the same name terminates first, and keeps its mirror until then.
        desired.retain(|uid, manifest| known.contains_key(uid) || !pods.is_name_in_use(&manifest.pod));
        for (uid, manifest) in &desired {
            if !known.contains_key(uid) {
                pods.desire(manifest.pod.clone());
            }
        }
        known = desired;
        let complete = sync_mirrors(&context, &pods, &known).await;
        let pause = if complete { POLL_INTERVAL } else { Duration::from_secs(1) };
        match &watcher {
            Ok(watcher) => {
                // The directory is read again in any case.
                let waited = tokio::time::timeout(pause, watcher.removed()).await;
                removed = waited.ok().and_then(Result::ok).unwrap_or_default();
            }
            Err(_) => tokio::time::sleep(pause).await,
        }
    }
}

/// A static pod, and the name of its file.
struct Manifest {
    pod: Arc<Pod>,
    file: OsString,
}

/// By the pod's uid.
type Manifests = HashMap<String, Manifest>;

/// Reads all manifests. Logs and skips invalid ones.
fn read_directory(directory: &Path, node: &str, rules: Option<PodRules>) -> Manifests {
    let mut found = HashMap::new();
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    for path in paths {
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if hidden || !path.is_file() {
            continue;
        }
        match read(&path).and_then(|text| parse(&text, node, rules)) {
            Ok(pod) => {
                let file = path.file_name().unwrap_or_default().to_os_string();
                found.insert(pod::uid(&pod).to_string(), Manifest { pod: Arc::new(pod), file });
            }
            Err(error) => tracing::warn!(error, file = %path.display(), "cannot use a manifest"),
        }
    }
    found
}

fn read(path: &Path) -> Result<String, String> {
    let content = beneath::open_linked(path).and_then(|file| beneath::read_whole(file, MAX_MANIFEST_SIZE));
    String::from_utf8(content.map_err(|error| error.to_string())?).map_err(|error| error.to_string())
}

/// Parses a manifest and adds what every static pod has: the node's name as suffix, a uid derived from the content, and
/// source annotations. It is validated like a pod of the API, and must not refer to API objects (`rules`).
pub(super) fn parse(text: &str, node: &str, rules: Option<PodRules>) -> Result<Pod, String> {
    let pod: Pod = serde_yaml_ng::from_str(text).map_err(|error| error.to_string())?;
    let pod = complete(pod, text, node)?;
    let mut value = serde_json::to_value(&pod).map_err(|error| error.to_string())?;
    rules.ok_or("static pods cannot be validated on this node")?(&mut value)?;
    decode::from_value(&value).map_err(|error| error.to_string())
}

fn complete(mut pod: Pod, text: &str, node: &str) -> Result<Pod, String> {
    let name =
        pod.metadata.name.clone().filter(|name| !name.is_empty()).ok_or("invalid pod: name is needed for the pod")?;
    pod.metadata.name = Some(format!("{name}-{}", node.to_lowercase()));
    pod.metadata.namespace.get_or_insert_with(|| "default".to_string());
    let hash: String = Sha256::digest(format!("{node}\0{text}")).iter().take(16).map(|b| format!("{b:02x}")).collect();
    let uid = pod.metadata.uid.get_or_insert_with(|| hash.clone());
    // The uid is used in directory names.
    if !uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') || uid.is_empty() {
        return Err(format!("invalid pod: uid {uid:?} may hold letters, digits and '-' only"));
    }
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(pod::CONFIG_HASH.into(), hash);
    annotations.insert(pod::CONFIG_SOURCE.into(), "file".into());
    annotations.insert(pod::CONFIG_SEEN.into(), k8s_openapi::jiff::Timestamp::now().to_string());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node.to_string());
    spec.termination_grace_period_seconds.get_or_insert(30);
    let tolerates_all =
        Toleration { operator: Some("Exists".into()), effect: Some("NoExecute".into()), ..Default::default() };
    spec.tolerations.get_or_insert_default().push(tolerates_all);
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container.termination_message_path.get_or_insert_with(|| "/dev/termination-log".into());
        container.termination_message_policy.get_or_insert_with(|| "File".into());
    }
    pod.status = None;
    Ok(pod)
}

/// Creates and deletes mirror pods for exactly these pods. Returns whether all are in sync.
async fn sync_mirrors(context: &Context, pods: &Pods, desired: &Manifests) -> bool {
    let mut complete = true;
    // A terminating pod keeps its mirror until it is gone.
    complete &= pods.static_count() <= desired.len();
    for mirror in pods.stray_mirrors() {
        delete_mirror(context, &mirror).await;
        complete = false;
    }
    for Manifest { pod, .. } in desired.values() {
        let hash = pod::annotation(pod, pod::CONFIG_HASH);
        let api: Api<Pod> = Api::namespaced(context.client.clone(), pod::namespace(pod));
        if let Some(mirror) = pods.mirror_of(pod) {
            let current =
                pod::annotation(&mirror, pod::CONFIG_MIRROR) == hash && mirror.metadata.deletion_timestamp.is_none();
            if current {
                continue;
            }
            // It is outdated or being deleted: replace it.
            complete &= delete_mirror(context, &mirror).await;
        }
        match api.create(&PostParams::default(), &mirror_pod(context, pod)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 409 => complete = false,
            Err(error) => {
                tracing::debug!(%error, pod = pod::title(pod), "cannot create a mirror pod");
                complete = false;
            }
        }
    }
    complete
}

/// Deletes a mirror pod. Returns whether it is gone from the API.
async fn delete_mirror(context: &Context, mirror: &Pod) -> bool {
    let api: Api<Pod> = Api::namespaced(context.client.clone(), pod::namespace(mirror));
    let parameters = DeleteParams {
        grace_period_seconds: Some(0),
        preconditions: Some(Preconditions { uid: mirror.metadata.uid.clone(), resource_version: None }),
        ..Default::default()
    };
    match api.delete(pod::name(mirror), &parameters).await {
        Ok(_) => true,
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => true,
        Err(error) => {
            tracing::debug!(%error, pod = pod::title(mirror), "cannot delete an old mirror pod");
            false
        }
    }
}

fn mirror_pod(context: &Context, pod: &Pod) -> Pod {
    let mut mirror = pod.clone();
    mirror.metadata.uid = None;
    mirror.metadata.resource_version = None;
    let hash = pod::annotation(pod, pod::CONFIG_HASH).unwrap_or_default().to_string();
    mirror.metadata.annotations.get_or_insert_with(BTreeMap::new).insert(pod::CONFIG_MIRROR.into(), hash);
    let node = context.node.get("", &context.settings.node_name);
    if let Some(uid) = node.as_ref().and_then(|node| node.metadata.uid.clone()) {
        mirror.metadata.owner_references = Some(vec![OwnerReference {
            api_version: "v1".into(),
            kind: "Node".into(),
            name: context.settings.node_name.clone(),
            uid,
            controller: Some(true),
            ..Default::default()
        }]);
    }
    mirror
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACCEPT: Option<PodRules> = Some(|_| Ok(()));

    #[test]
    fn a_manifest_becomes_a_pod_of_the_node() {
        let text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n  - name: c\n    image: i\n";
        let pod = parse(text, "Node1", ACCEPT).expect("a pod");
        assert_eq!((pod::namespace(&pod), pod::name(&pod)), ("default", "a-node1"));
        assert!(pod::is_static(&pod) && !pod::uid(&pod).is_empty());
        assert_ne!(
            parse(&text.replace("image: i", "image: j"), "Node1", ACCEPT).expect("a pod").metadata.uid,
            pod.metadata.uid
        );
        assert!(parse("kind: Pod\nmetadata: {}\n", "n", ACCEPT).is_err());
    }

    #[test]
    fn a_manifest_is_validated_as_a_pod_of_the_api() {
        let text = "kind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n  - name: c\n    image: i\n";
        let with = |line: &str| parse(&format!("{text}{line}\n"), "n", ACCEPT).map(drop);
        assert_eq!(with("  nodeSelector: {}"), Ok(()));
        assert!(parse(text, "n", None).is_err(), "a pod that nothing validates does not run");
        for uid in ["../../etc", "", "a/b", ".."] {
            let named = text.replace("name: a\n", &format!("name: a\n  uid: '{uid}'\n"));
            assert!(parse(&named, "n", ACCEPT).is_err(), "{uid:?}");
        }
        let refuse: PodRules = |_| Err("invalid pod: [one, two]".to_string());
        assert_eq!(parse(text, "n", Some(refuse)).map(drop), Err("invalid pod: [one, two]".to_string()));
        let default: PodRules = |pod| {
            pod["spec"]["dnsPolicy"] = "Default".into();
            Ok(())
        };
        let pod = parse(text, "n", Some(default)).expect("a pod");
        assert_eq!(pod::spec(&pod).dns_policy.as_deref(), Some("Default"));
    }

    #[test]
    fn manifests_of_any_size_are_not_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.yaml");
        std::fs::File::create(&path).and_then(|file| file.set_len(MAX_MANIFEST_SIZE + 1)).expect("made");
        assert!(read(&path).is_err());
        std::fs::write(&path, "kind: Pod").expect("written");
        std::os::unix::fs::symlink(&path, directory.path().join("link")).expect("made");
        assert_eq!(read(&directory.path().join("link")), Ok("kind: Pod".to_string()));
    }
}
