//! The part of a support bundle that is about this host.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::process::Command;

use super::{Bundle, Redactor};
use crate::log_source::{self, containerd_log};

/// How long one program may take.
const TIMEOUT: Duration = Duration::from_secs(20);
const LOG_LINES: usize = 20_000;

/// Programs that describe the host, and the files of their output. None prints the arguments of processes, which may hold
/// secrets.
const PROGRAMS: [(&str, &str, &[&str]); 12] = [
    ("kernel", "uname", &["-a"]),
    ("uptime", "uptime", &[]),
    ("memory", "free", &["-m"]),
    ("disks", "df", &["-h"]),
    ("processes", "ps", &["-eo", "pid,ppid,user,rss,pcpu,etimes,stat,comm"]),
    ("mounts", "findmnt", &["--list", "--output", "TARGET,FSTYPE,SIZE,USED,PROPAGATION"]),
    ("interfaces", "ip", &["-details", "address"]),
    ("routes", "ip", &["route", "show", "table", "all"]),
    ("rules", "ip", &["rule"]),
    ("sockets", "ss", &["-tulnH"]),
    ("nftables", "nft", &["list", "ruleset"]),
    ("kernel-messages", "dmesg", &["--ctime", "--level", "emerg,alert,crit,err,warn"]),
];

/// Reads logs, settings and what the kernel shows of this host. `cluster` are the flags that select the cluster.
pub async fn collect_host(bundle: &mut Bundle, data: &Path, cluster: &[String], redactor: &Redactor) {
    if let Ok(release) = std::fs::read_to_string("/etc/os-release") {
        bundle.add("host/os-release", release);
    }
    for (name, program, arguments) in PROGRAMS {
        collect(bundle, &format!("host/{name}.txt"), program, arguments, redactor).await;
    }
    let own = std::env::current_exe().unwrap_or_else(|_| "knarr".into());
    let own = own.to_string_lossy();
    let data_flag = data.to_string_lossy();
    let mut status = vec!["status", "--data-dir", &data_flag];
    status.extend(cluster.iter().map(String::as_str));
    for (name, arguments) in [
        ("version", vec!["--version"]),
        ("check", vec!["check", "--data-dir", &data_flag]),
        ("config", vec!["config", "show", crate::paths::role(data), "--changed"]),
        ("status", status),
    ] {
        collect(bundle, &format!("host/knarr-{name}.txt"), &own, &arguments, redactor).await;
    }
    collect_logs(bundle, data, redactor).await;
}

async fn collect_logs(bundle: &mut Bundle, data: &Path, redactor: &Redactor) {
    match log_source::find(data).and_then(|source| Ok(source.open(LOG_LINES, false)?.wait_with_output()?)) {
        Ok(output) => bundle.add("host/knarr.log", redactor.text(&String::from_utf8_lossy(&output.stdout))),
        Err(error) => bundle.fail("the log of Knarr", &error, redactor),
    }
    let log = containerd_log(data).to_string_lossy().into_owned();
    let lines = LOG_LINES.to_string();
    collect(bundle, "host/containerd.log", "tail", &["-n", &lines, "--", &log], redactor).await;
}

/// Adds the output of a program. A failure of `knarr check` is a result, too.
async fn collect(bundle: &mut Bundle, name: &str, program: &str, arguments: &[&str], redactor: &Redactor) {
    match output(program, arguments).await {
        Ok(text) => bundle.add(name, redactor.text(&text)),
        Err(error) => bundle.fail(&format!("{program} {}", arguments.join(" ")), &error, redactor),
    }
}

async fn output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let finished = tokio::time::timeout(TIMEOUT, command.output()).await;
    let output = finished.with_context(|| format!("it did not end within {} s", TIMEOUT.as_secs()))?;
    let output = output.context("cannot run it")?;
    let text = [output.stdout, output.stderr].concat();
    if text.is_empty() && !output.status.success() {
        bail!("it failed ({})", output.status);
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}
