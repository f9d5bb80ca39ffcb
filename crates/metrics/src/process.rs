//! What every process exposes: its own resources, and how many families its page has.

use std::fmt::Write as _;

/// What Linux reports on all architectures.
const TICKS_PER_SECOND: f64 = 100.0;

/// Appends the resources that the process uses, and its version.
pub fn write_process(version: &str, platform: &str, out: &mut String) {
    let mut family = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
    };
    let read = |name: &str| std::fs::read_to_string(format!("/proc/self/{name}")).unwrap_or_default();
    let (status, stat, limits) = (read("status"), read("stat"), read("limits"));
    let kilobytes = |name: &str| field(&status, name).map(|kilobytes| kilobytes * 1024.0);
    let descriptors = std::fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as f64);
    let max_descriptors = field(&limits, "Max open files");
    family("process_cpu_seconds_total", "counter", "CPU time of the process.", cpu_seconds(&stat));
    family("process_resident_memory_bytes", "gauge", "Memory of the process.", kilobytes("VmRSS:"));
    family("process_virtual_memory_bytes", "gauge", "Address space of the process.", kilobytes("VmSize:"));
    family("process_open_fds", "gauge", "Open file descriptors.", descriptors);
    family("process_max_fds", "gauge", "Limit of open file descriptors.", max_descriptors);
    let started = boot_time().zip(start_ticks(&stat)).map(|(boot, ticks)| boot + ticks / TICKS_PER_SECOND);
    family("process_start_time_seconds", "gauge", "When the process started, in seconds since 1970.", started);
    let tasks = tokio::runtime::Handle::try_current().map(|runtime| runtime.metrics().num_alive_tasks() as f64);
    family("go_goroutines", "gauge", "Tasks that exist now, by the name that dashboards expect.", tasks.ok());
    write_build_info(version, platform, out);
}

fn write_build_info(version: &str, platform: &str, out: &mut String) {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let name = "kubernetes_build_info";
    let _ = writeln!(
        out,
        "# HELP {name} [BETA] Always 1, labelled with the version.\n# TYPE {name} gauge\n\
         {name}{{build_date=\"\",compiler=\"rustc\",git_commit=\"\",git_tree_state=\"clean\",git_version={version:?},\
         go_version=\"\",major={major:?},minor={minor:?},platform={platform:?}}} 1"
    );
}

/// Appends which feature gates are on: name, stage and state of each.
pub fn write_features<'a>(gates: impl IntoIterator<Item = (&'a str, &'a str, bool)>, out: &mut String) {
    let name = "kubernetes_feature_enabled";
    let _ = writeln!(out, "# HELP {name} [BETA] Whether each feature gate is on, by its stage.\n# TYPE {name} gauge");
    for (gate, stage, is_on) in gates {
        let _ = writeln!(out, "{name}{{name={gate:?},stage={stage:?}}} {}", u8::from(is_on));
    }
}

/// Appends how many families a page has, by their stability: the help text of each starts with it.
pub fn write_totals(out: &mut String) {
    let levels = ["ALPHA", "BETA", "STABLE"];
    let counts = levels.map(|level| {
        let mark = format!("[{level}]");
        out.lines().filter(|line| line.starts_with("# HELP ") && line.split(' ').nth(3) == Some(&mark)).count()
    });
    let name = "registered_metrics_total";
    let _ = writeln!(out, "# HELP {name} [BETA] Families of metrics, by stability.\n# TYPE {name} counter");
    for (level, count) in levels.iter().zip(counts) {
        let _ = writeln!(out, "{name}{{deprecated_version=\"\",stability_level={level:?}}} {count}");
    }
    for (name, what) in [("disabled_metrics_total", "disabled"), ("hidden_metrics_total", "hidden")] {
        let _ =
            writeln!(out, "# HELP {name} [BETA] Families of metrics that are {what}.\n# TYPE {name} counter\n{name} 0");
    }
}

/// The number after a name at the start of a line.
fn field(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

/// A field of `/proc/self/stat`, counted from the state. The name of the process, in parentheses, may contain anything.
fn stat_field(stat: &str, at: usize) -> Option<f64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(at)?.parse().ok()
}

fn cpu_seconds(stat: &str) -> Option<f64> {
    Some((stat_field(stat, 11)? + stat_field(stat, 12)?) / TICKS_PER_SECOND)
}

fn start_ticks(stat: &str) -> Option<f64> {
    stat_field(stat, 19)
}

/// When the host started, in seconds since 1970.
fn boot_time() -> Option<f64> {
    field(&std::fs::read_to_string("/proc/stat").ok()?, "btime")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 3 0 1234 1 1";
        assert_eq!((cpu_seconds(stat), start_ticks(stat)), (Some(3.0), Some(1234.0)));
        assert_eq!(field("VmRSS:\t  12 kB\n", "VmRSS:"), Some(12.0));
        assert_eq!(field("Max open files   1024   4096   files\n", "Max open files"), Some(1024.0));
        assert_eq!((cpu_seconds(""), field("", "x")), (None, None));
    }

    #[test]
    fn a_page_has_the_process_and_its_totals() {
        let mut out = "# HELP a [STABLE] A.\n# HELP b [BETA] B [STABLE] of.\n".to_owned();
        write_process("v1.36.4", "linux/arm64", &mut out);
        write_totals(&mut out);
        for expected in [
            "process_cpu_seconds_total ",
            "process_resident_memory_bytes ",
            "process_open_fds ",
            "process_start_time_seconds ",
            ",major=\"1\",minor=\"36\",platform=\"linux/arm64\"}",
            "registered_metrics_total{deprecated_version=\"\",stability_level=\"BETA\"} 2\n",
            "hidden_metrics_total 0\n",
        ] {
            assert!(out.contains(expected), "{expected} in {out}");
        }
    }
}
