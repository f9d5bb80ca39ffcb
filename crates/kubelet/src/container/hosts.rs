//! The hostname of a pod and its /etc/hosts.

use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use k8s_openapi::api::core::v1::Pod;

use crate::beneath;
use crate::pod;

const MAX_HOSTNAME_LENGTH: usize = 63;

/// The short name and, where the pod has a subdomain, the domain behind it.
pub struct Names {
    pub hostname: String,
    pub domain: Option<String>,
}

pub fn names(pod: &Pod, cluster_domain: &str) -> Names {
    let spec = pod::spec(pod);
    if let Some(name) = spec.hostname_override.as_deref().filter(|name| !name.is_empty()) {
        return Names { hostname: name.to_string(), domain: None };
    }
    let chosen = spec.hostname.as_deref().filter(|name| !name.is_empty()).unwrap_or(pod::name(pod));
    let mut hostname = chosen.to_string();
    if hostname.len() > MAX_HOSTNAME_LENGTH {
        hostname.truncate(MAX_HOSTNAME_LENGTH);
        hostname.truncate(hostname.trim_end_matches(['-', '.']).len());
    }
    let subdomain = spec.subdomain.as_deref().filter(|name| !name.is_empty());
    let domain = subdomain.map(|sub| format!("{sub}.{}.svc.{cluster_domain}", pod::namespace(pod)));
    Names { hostname, domain }
}

/// What `hostname` prints inside the pod.
pub fn kernel_hostname(pod: &Pod, cluster_domain: &str) -> String {
    let Names { hostname, domain } = names(pod, cluster_domain);
    match domain {
        Some(domain) if pod::spec(pod).set_hostname_as_fqdn == Some(true) => format!("{hostname}.{domain}"),
        _ => hostname,
    }
}

/// The kernel's limit.
const MAX_KERNEL_NAME_LENGTH: usize = 64;

/// The name inside the pod, unless it is too long for the kernel.
pub fn fitting_hostname(pod: &Pod, cluster_domain: &str) -> Result<String, String> {
    let name = kernel_hostname(pod, cluster_domain);
    if name.len() <= MAX_KERNEL_NAME_LENGTH {
        return Ok(name);
    }
    Err(format!(
        "failed to construct FQDN from pod hostname and cluster domain, FQDN {name} is too long \
         ({MAX_KERNEL_NAME_LENGTH} characters is the max, {} characters requested)",
        name.len()
    ))
}

/// The whole file. Pods on the node's network see the node's own entries.
pub fn hosts_file(pod: &Pod, addresses: &[String], cluster_domain: &str, node_file: &str) -> String {
    let mut file = String::new();
    if pod::host_network(pod) {
        file.push_str("# Kubernetes-managed hosts file (host network).\n");
        file.push_str(node_file);
    } else {
        file.push_str("# Kubernetes-managed hosts file.\n");
        file.push_str("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\n");
        file.push_str("fe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n");
        let Names { hostname, domain } = names(pod, cluster_domain);
        for address in addresses {
            match &domain {
                Some(domain) => file.push_str(&format!("{address}\t{hostname}.{domain}\t{hostname}\n")),
                None => file.push_str(&format!("{address}\t{hostname}\n")),
            }
        }
    }
    let aliases = pod::spec(pod).host_aliases.iter().flatten();
    for (position, alias) in aliases.enumerate() {
        if position == 0 {
            file.push_str("\n# Entries added by HostAliases.\n");
        }
        file.push_str(&format!(
            "{}\t{}\n",
            alias.ip,
            alias.hostnames.iter().flatten().cloned().collect::<Vec<_>>().join("\t")
        ));
    }
    file
}

/// Writes the file unless it already has that text. Containers can write to it, so no more is read than it should
/// contain. Every user of the pod may read it, whatever the umask.
pub fn write_hosts_file(path: &Path, text: &str) -> io::Result<()> {
    if holds(path, text) {
        return Ok(());
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW);
    let mut file = options.open(path)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(text.as_bytes())
}

fn holds(path: &Path, text: &str) -> bool {
    let length = text.len() as u64;
    let Ok(file) = beneath::open_regular(path) else { return false };
    file.metadata().is_ok_and(|metadata| metadata.len() == length)
        && beneath::read_head(file, length).is_ok_and(|content| content == text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The most memory this process ever had, in KiB.
    fn most_memory() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a line");
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
    }

    #[test]
    fn a_hosts_file_that_a_container_grew_costs_nothing() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("etc-hosts");
        write_hosts_file(&path, "one\n").expect("written");
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o644);
        OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(1 << 30)).expect("grown");
        let before = most_memory();
        write_hosts_file(&path, "two\n").expect("written");
        assert_eq!(std::fs::read_to_string(&path).expect("readable"), "two\n");
        assert!(most_memory() - before < 512 << 10, "the file was read whole");
        let used = crate::filesystem::directory_usage(directory.path()).0;
        std::fs::write(&path, vec![b'x'; 1 << 20]).expect("written");
        let more = crate::filesystem::directory_usage(directory.path()).0;
        assert!(more >= used + (1 << 20) - 4096, "it counts as the pod's storage: {used} {more}");
    }

    #[test]
    fn names_are_cut_and_qualified() {
        let long = "a".repeat(62) + "-b";
        let cases = [
            (json!({ "metadata": { "name": long } }), "a".repeat(62), None),
            (
                json!({ "metadata": { "name": "p", "namespace": "n" }, "spec": { "containers": [], "hostname": "h",
                    "subdomain": "s" } }),
                "h".to_string(),
                Some("s.n.svc.d".to_string()),
            ),
        ];
        for (value, hostname, domain) in cases {
            let names = names(&serde_json::from_value(value).expect("a pod"), "d");
            assert_eq!((names.hostname, names.domain), (hostname, domain));
        }
    }
}
