//! Who reads the wall clock, and what for. Elapsed time is monotonic: a step of the clock must not change how long something took.
//!
//! Crates of pure decisions may not read it at all. The binary, which hands the time to others, and tools are not checked.

use super::spawns::is_test;
use super::{CLOCKS, DECIDES, before_tests, directories, file_name, none, read, root, sources};

/// Files that read the wall clock, and why nothing else would do.
const READS_THE_CLOCK: &[(&str, &str)] = &[
    ("apiserver/src/api_services.rs", "creation times"),
    ("apiserver/src/audit/log.rs", "names and ages of files"),
    ("apiserver/src/audit/record/mod.rs", "times in events"),
    ("apiserver/src/authenticate/reload.rs", "a metric"),
    ("apiserver/src/authorize/chain.rs", "a metric"),
    ("apiserver/src/background/availability.rs", "times in conditions"),
    ("apiserver/src/background/flow_control/status.rs", "times in conditions"),
    ("apiserver/src/background/mod.rs", "times in repaired objects"),
    ("apiserver/src/definition_controller/mod.rs", "times in conditions and managed fields"),
    ("apiserver/src/outbound/kubeconfig/user.rs", "the expiry of credentials"),
    ("apiserver/src/pipeline.rs", "the expiry of credentials, and times in objects and events"),
    ("apiserver/src/provided/resource_metrics/collect.rs", "times of samples"),
    ("apiserver/src/provided/resource_metrics/mod.rs", "creation times"),
    ("apiserver/src/response/table.rs", "ages in tables, from creation times"),
    ("apiserver/src/service/ip_allocator.rs", "creation times"),
    ("apiserver/src/startup/mod.rs", "times in objects"),
    ("apiserver/src/ui/problems.rs", "ages, from times in objects"),
    ("client/src/events/mod.rs", "times and names of events"),
    ("client/src/events/recorder.rs", "times and names of events"),
    ("client/src/events/series.rs", "times and names of events"),
    ("client/src/time.rs", "times in objects"),
    ("cri/src/containerd/process/mod.rs", "the start of containerd, compared with times of files"),
    ("csi-controller/src/attach.rs", "times in statuses"),
    ("csi-controller/src/snapshot/content.rs", "times in statuses"),
    ("csi-controller/src/snapshot/volume_snapshot.rs", "times in statuses"),
    ("csi-controller/src/status.rs", "times in conditions"),
    ("journey/src/record.rs", "times of steps"),
    ("kubelet/src/csi/expand.rs", "times in conditions"),
    ("kubelet/src/host.rs", "when the process started, for a metric"),
    ("kubelet/src/images/access.rs", "times in records on disk"),
    ("kubelet/src/node/certificates/mod.rs", "the validity of certificates"),
    ("kubelet/src/node/log_rotation.rs", "names of files"),
    ("kubelet/src/node/register.rs", "times in the node's status"),
    ("kubelet/src/node/shutdown.rs", "metrics"),
    ("kubelet/src/node/startup.rs", "metrics"),
    ("kubelet/src/runtime/events.rs", "a metric"),
    ("kubelet/src/server/cadvisor/mod.rs", "times of samples"),
    ("kubelet/src/server/checkpoint.rs", "names of files"),
    ("kubelet/src/server/logs.rs", "log lines since a time, which have their own"),
    ("kubelet/src/server/metrics.rs", "times of samples"),
    ("kubelet/src/server/node_metrics.rs", "the validity of certificates, for a metric"),
    ("kubelet/src/server/route.rs", "a page that shows the time"),
    ("kubelet/src/server/stats/mod.rs", "times of samples"),
    ("kubelet/src/source/manifests.rs", "an annotation of static pods"),
    ("kubelet/src/tokens.rs", "the expiry of tokens"),
    ("kubelet/src/volumes/atomic.rs", "names of directories"),
    ("kubelet/src/volumes/mounter.rs", "the next publication of a volume, compared with the expiry of tokens"),
    ("kubelet/src/worker/mod.rs", "times in the pod's status, from which its active deadline counts"),
    ("kubelet/src/worker/probe_tasks.rs", "the age of a container, once, as the runtime knows only when it started"),
    ("kubelet/src/worker/spawn.rs", "times in the pod's status"),
    ("local-storage/src/controller/snapshot.rs", "creation times"),
    ("network/src/proxy/debug.rs", "a page that shows the start"),
    ("network/src/proxy/status.rs", "metrics, and a page that shows times"),
    ("store/src/clock.rs", "when entries expire: the start only"),
    ("traces/src/span.rs", "times of spans"),
];

/// The binary, and crates of tools and tests.
const NOT_CHECKED: &[&str] = &["bench", "fuzz-targets", "knarr", "tidy"];

#[test]
fn the_wall_clock_is_read_for_a_reason() {
    let crates = root().join("crates");
    let mut wrong = Vec::new();
    let mut found = Vec::new();
    for krate in directories(&crates).iter().map(|krate| file_name(krate)) {
        if DECIDES.contains(&krate.as_str()) || NOT_CHECKED.contains(&krate.as_str()) {
            continue;
        }
        for file in sources(&crates.join(krate).join("src")) {
            let path = file.strip_prefix(&crates).unwrap_or(&file).to_string_lossy().into_owned();
            let text = read(&file);
            if is_test(&path) || !CLOCKS.iter().any(|clock| before_tests(&text).contains(clock)) {
                continue;
            }
            if !READS_THE_CLOCK.iter().any(|(name, _)| *name == path) {
                wrong
                    .push(format!("crates/{path} reads the wall clock: measure elapsed time with Instant, or say why"));
            }
            found.push(path);
        }
    }
    let gone = READS_THE_CLOCK.iter().filter(|(name, _)| !found.iter().any(|path| path == name));
    wrong
        .extend(gone.map(|(name, _)| format!("crates/{name} no longer reads the wall clock: remove it from the list")));
    none(wrong);
}
