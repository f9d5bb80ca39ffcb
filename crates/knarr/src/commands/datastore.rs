//! The store of the API server that the flags ask for: the embedded one or an etcd, encrypted at rest if configured.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, bail};
use knarr_apiserver::encrypt::{Configuration, Encrypted, Encryption};
use knarr_apiserver::outbound::egress::{Egress, Network, Route};
use knarr_apiserver::persist::foreign;
use knarr_store::{Dialer, Embedded, Etcd, EtcdOptions, Store, Tls};

use super::apiserver::Arguments;

/// Opens the store, or connects to it.
pub async fn open(arguments: &Arguments) -> anyhow::Result<Arc<dyn Store>> {
    if !arguments.datastore.is_empty() {
        let options = EtcdOptions {
            stored_root: Some(format!("{}/", prefix(arguments))),
            decode: Some(foreign::decoder()),
            dialer: dialer(Egress::current().route(Network::Etcd)),
            ..EtcdOptions::default()
        };
        let store = Etcd::connect(&arguments.datastore, etcd_tls(arguments)?, options)
            .await
            .with_context(|| format!("cannot reach the store at {}", arguments.datastore.join(", ")))?;
        return Ok(Arc::new(store));
    }
    if prefix(arguments) != DEFAULT_PREFIX {
        bail!("--etcd-prefix {} needs an etcd: the embedded store has no other users", arguments.etcd_prefix);
    }
    let directory = arguments.store_dir.clone().unwrap_or_else(|| arguments.data_dir.join("store"));
    let mut options = knarr_store::Options {
        quota_bytes: quota(arguments.quota_backend_bytes, memory()),
        reserve_bytes: DISK_RESERVE,
        deferrable: Some(NODE_LEASES),
        ..knarr_store::Options::default()
    };
    if arguments.store_unsafe_no_fsync {
        // Data that may be lost needs no space set aside either.
        options.reserve_bytes = 0;
        options.disk = Arc::new(knarr_store::UnsyncedDisk::default());
    }
    let store = Embedded::open(&directory, options).with_context(|| {
        format!(
            "cannot open the store in {0}: `knarr store check` says whether it is damaged; then repair it with \
                 `knarr store repair`, or move {0} away and bring back a snapshot with `knarr snapshot restore`",
            directory.display()
        )
    })?;
    Ok(Arc::new(store))
}

/// The prefix of keys in etcd if none is given.
const DEFAULT_PREFIX: &str = "/registry";

/// The prefix of keys in etcd, as Kubernetes joins it: rooted, without a slash at its end.
fn prefix(arguments: &Arguments) -> String {
    let segments = arguments.etcd_prefix.split('/').filter(|segment| !segment.is_empty());
    segments.fold(String::new(), |prefix, segment| format!("{prefix}/{segment}"))
}

/// How members of etcd are reached, if not directly.
fn dialer(route: &Route) -> Option<Dialer> {
    if route.is_direct() {
        return None;
    }
    let route = route.clone();
    Some(Arc::new(move |host, port| {
        let route = route.clone();
        Box::pin(async move {
            let stream = route.dial(&host, port).await.map_err(std::io::Error::other)?;
            Ok(Box::new(stream) as Box<dyn knarr_store::Connection>)
        })
    }))
}

/// The default quota of the store, and the disk space that it keeps for deletions on a full disk.
const DEFAULT_QUOTA: u64 = 8 << 30;
const DISK_RESERVE: u64 = 64 << 20;
/// Renewals of node leases: a node has seconds for each, and thousands of nodes would each cause a sync of their own.
const NODE_LEASES: &str = "/registry/leases/kube-node-lease/";

/// The quota of the store on a host with this much memory: all data is in memory.
fn quota(given: u64, memory: Option<u64>) -> u64 {
    if given > 0 { given } else { memory.map_or(DEFAULT_QUOTA, |memory| DEFAULT_QUOTA.min(memory / 2)) }
}

/// The host's memory in bytes.
fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    total.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

/// Wraps the store with encryption at rest, if configured.
pub fn encrypted(
    arguments: &Arguments,
    store: Arc<dyn Store>,
) -> anyhow::Result<(Arc<dyn Store>, Option<(Encryption, String)>)> {
    let Some(path) = &arguments.encryption_provider_config else { return Ok((store, None)) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let configuration = Configuration::parse(&text).with_context(|| format!("cannot use {}", path.display()))?;
    let encryption = Encryption::new(configuration);
    let store = Encrypted::new(store, encryption.clone()).with_prefix(&prefix(arguments));
    Ok((Arc::new(store), Some((encryption, text))))
}

fn etcd_tls(arguments: &Arguments) -> anyhow::Result<Option<Tls>> {
    let Some(authority) = &arguments.etcd_cafile else { return Ok(None) };
    let read = |path: &PathBuf| std::fs::read(path).with_context(|| format!("cannot read {}", path.display()));
    let identity = match (&arguments.etcd_certfile, &arguments.etcd_keyfile) {
        (Some(certificate), Some(key)) => Some((read(certificate)?, read(key)?)),
        _ => None,
    };
    Ok(Some(Tls { authority: read(authority)?, identity }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: super::Arguments,
    }

    #[test]
    fn the_quota_fits_into_memory() {
        for (given, memory, quota) in [
            (0, None, 8 << 30),
            (0, Some(64 << 30), 8 << 30),
            (0, Some(4 << 30), 2 << 30),
            (5000, Some(4 << 30), 5000),
            (100 << 30, Some(4 << 30), 100 << 30),
        ] {
            assert_eq!(super::quota(given, memory), quota);
        }
        assert!(super::memory().is_some_and(|bytes| bytes > 64 << 20));
    }

    #[test]
    fn prefixes_are_joined_as_in_kubernetes() {
        for (given, prefix) in [("/registry", "/registry"), ("registry/", "/registry"), ("/a//b/", "/a/b"), ("/", "")] {
            let line = Line::try_parse_from(["knarr", "--etcd-prefix", given]).unwrap();
            assert_eq!(super::prefix(&line.arguments), prefix, "{given}");
        }
    }

    #[test]
    fn a_certificate_for_etcd_is_not_overlooked() {
        let parse = |names: &[&str]| {
            let flags = names.iter().flat_map(|name| [format!("--etcd-{name}"), "file".to_owned()]);
            Line::try_parse_from(["knarr".to_owned()].into_iter().chain(flags)).map(|line| line.arguments.etcd_certfile)
        };
        assert!(parse(&["cafile", "certfile", "keyfile"]).is_ok_and(|file| file.is_some()));
        assert!(parse(&["cafile"]).is_ok());
        let refused = parse(&["certfile", "keyfile"]).unwrap_err().to_string();
        assert!(refused.contains("--etcd-cafile"), "{refused}");
        assert!(parse(&["cafile", "certfile"]).is_err());
    }
}
