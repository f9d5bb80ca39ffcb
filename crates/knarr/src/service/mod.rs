//! The systemd service: the unit file, and notifications to systemd.
//!
//! A unit names its data directory, so that `stop` and `uninstall` find it.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

/// The unit, which the Debian package contains, too.
const TEMPLATE: &str = include_str!("unit.service");

/// Where `knarr install` writes the unit.
const UNITS: &str = "/etc/systemd/system";
/// Where packages have theirs. A unit of the same name in [`UNITS`] takes precedence.
const PACKAGED_UNITS: &str = "/usr/lib/systemd/system";
/// The key in the unit for a program that was installed with it.
const INSTALLED_KEY: &str = "Placed=";

/// The content of a unit.
#[derive(Clone, Debug)]
pub struct Unit {
    /// `server` or `agent`.
    pub role: String,
    pub program: PathBuf,
    pub data: PathBuf,
    /// Flags in addition to the configuration file.
    pub flags: Vec<String>,
    /// Whether the program was installed for the service, and is removed with it.
    pub is_placed: bool,
}

impl Unit {
    pub fn name(&self) -> &'static str {
        if self.role == "agent" { "knarr-agent.service" } else { "knarr.service" }
    }

    /// Pods and their runtime outlive the service: stopping it stops only Knarr's own process. After a crash it restarts
    /// before clients notice; repeated crashes increase the delay.
    pub fn text(&self) -> String {
        let mut command = format!("{} {}", quote(&self.program.to_string_lossy()), self.role);
        for flag in &self.flags {
            let _ = write!(command, " {}", quote(flag));
        }
        let values =
            [("@ROLE@", self.role.clone()), ("@COMMAND@", command), ("@DATA@", self.data.display().to_string())];
        let mut text = values.iter().fold(TEMPLATE.to_owned(), |text, (key, value)| text.replace(key, value));
        if self.is_placed {
            let _ = writeln!(text, "{INSTALLED_KEY}{}", self.program.display());
        }
        text
    }

    /// Writes the unit and, if systemd is running, enables and starts it.
    pub fn install(&self) -> anyhow::Result<PathBuf> {
        let path = Path::new(UNITS).join(self.name());
        std::fs::create_dir_all(UNITS).with_context(|| format!("cannot create {UNITS}"))?;
        std::fs::write(&path, self.text())
            .with_context(|| format!("cannot write {}: are you root?", path.display()))?;
        if is_systemd_running() {
            systemctl(&["daemon-reload"])?;
            systemctl(&["enable", self.name()])?;
            systemctl(&["restart", self.name()])?;
        }
        Ok(path)
    }
}

/// Whether systemd is the init system of this host.
pub fn is_systemd_running() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// Whether systemd started this process as a service.
pub fn is_own_process() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some() && is_systemd_running()
}

/// Stops the service of a data directory. Returns whether there is one.
pub fn stop(data: &Path) -> anyhow::Result<bool> {
    if !is_systemd_running() {
        return Ok(false);
    }
    let mut found = effective_units(Path::new(UNITS), Path::new(PACKAGED_UNITS), data);
    // A package brings units that need not be in use.
    found.retain(|name| is_active(name));
    for name in &found {
        systemctl(&["stop", name])?;
    }
    Ok(!found.is_empty())
}

/// The names of the units of a data directory that systemd runs, or has run.
pub fn names(data: &Path) -> Vec<String> {
    if !is_systemd_running() {
        return Vec::new();
    }
    let mut names = effective_units(Path::new(UNITS), Path::new(PACKAGED_UNITS), data);
    // Of a package's two units, usually one is in use.
    if names.iter().any(|name| is_active(name)) {
        names.retain(|name| is_active(name));
    }
    names
}

/// Removes the service of a data directory, which must be stopped.
pub fn remove(data: &Path) -> anyhow::Result<()> {
    let found = units(Path::new(UNITS), data);
    for unit in &found {
        if is_systemd_running() {
            systemctl(&["disable", &name_of(unit)])?;
        }
        let text = std::fs::read_to_string(unit).unwrap_or_default();
        let placed = text.lines().find_map(|line| line.strip_prefix(INSTALLED_KEY)).map(PathBuf::from);
        for path in [Some(unit.clone()), placed].into_iter().flatten().filter(|path| path.exists()) {
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    if is_systemd_running() {
        // The package manager removes the files of packages; here they are only disabled.
        for name in effective_units(Path::new(UNITS), Path::new(PACKAGED_UNITS), data) {
            systemctl(&["disable", &name])?;
        }
        if !found.is_empty() {
            systemctl(&["daemon-reload"])?;
        }
    }
    Ok(())
}

/// The names of the units of a data directory: those of the administrator, and those of packages that no unit of the
/// administrator replaces.
fn effective_units(own: &Path, packaged: &Path, data: &Path) -> Vec<String> {
    let mut names: Vec<String> = units(own, data).iter().map(|unit| name_of(unit)).collect();
    let packaged = units(packaged, data).into_iter().map(|unit| name_of(&unit));
    names.extend(packaged.filter(|name| !own.join(name).exists()));
    names
}

/// Whether systemd runs a unit, or starts it again.
fn is_active(unit: &str) -> bool {
    let status = Command::new("systemctl").args(["is-active", unit]).output();
    status.is_ok_and(|output| !matches!(output.stdout.trim_ascii(), b"inactive" | b"failed" | b"unknown"))
}

fn units(directory: &Path, data: &Path) -> Vec<PathBuf> {
    let entry = format!("DataDirectory={}", data.display());
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let ours = entries.filter(|path| {
        let name = name_of(path);
        name.starts_with("knarr") && name.ends_with(".service")
    });
    let text = |path: &PathBuf| std::fs::read_to_string(path).unwrap_or_default();
    ours.filter(|path| text(path).lines().any(|line| line == entry)).collect()
}

fn name_of(unit: &Path) -> String {
    unit.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn systemctl(arguments: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("systemctl").args(arguments).output().context("cannot run systemctl")?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("systemctl {} failed: {}", arguments.join(" "), error.trim());
    }
    Ok(())
}

/// Quotes a word of a command line for systemd.
fn quote(word: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_=./:,@+[]".contains(character);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    format!("\"{escaped}\"")
}

/// Sends a state such as `READY=1` or `STATUS=…` to systemd, if it started this process.
pub fn notify(message: &str) {
    let Some(address) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(address.as_bytes(), message) {
        tracing::debug!(%error, "cannot notify systemd");
    }
}

fn send(address: &[u8], message: &str) -> std::io::Result<()> {
    use std::os::linux::net::SocketAddrExt;
    let socket = UnixDatagram::unbound()?;
    match address {
        // An abstract address starts with a zero byte, which the environment writes as @.
        [b'@', name @ ..] => {
            let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
            socket.send_to_addr(message.as_bytes(), &address)?;
        }
        path => {
            socket.send_to(message.as_bytes(), std::ffi::OsStr::from_bytes(path))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_found_by_its_data_directory() {
        let directory = tempfile::tempdir().unwrap();
        let unit = |role: &str, data: &str| Unit {
            role: role.into(),
            program: "/usr/local/bin/knarr".into(),
            data: data.into(),
            flags: vec!["--node-name".into(), "a b".into()],
            is_placed: false,
        };
        for unit in [unit("server", "/one"), unit("agent", "/two")] {
            assert!(unit.text().contains("Type=notify") && unit.text().contains("KillMode=process"));
            assert!(unit.text().contains("--node-name \"a b\""), "{}", unit.text());
            std::fs::write(directory.path().join(unit.name()), unit.text()).unwrap();
        }
        std::fs::write(directory.path().join("other.service"), unit("server", "/two").text()).unwrap();
        let names =
            |data: &str| units(directory.path(), Path::new(data)).iter().map(|p| name_of(p)).collect::<Vec<_>>();
        assert_eq!(names("/one"), ["knarr.service"]);
        assert_eq!(names("/two"), ["knarr-agent.service"]);
        assert!(names("/three").is_empty());
    }

    #[test]
    fn a_unit_of_a_package_counts_unless_it_is_replaced() {
        let [own, packaged] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let write = |directory: &tempfile::TempDir, name: &str, data: &str| {
            let text = TEMPLATE.replace("@DATA@", data);
            std::fs::write(directory.path().join(name), text).unwrap();
        };
        let names = |data: &str| effective_units(own.path(), packaged.path(), Path::new(data));
        write(&packaged, "knarr.service", "/one");
        write(&packaged, "knarr-agent.service", "/one");
        assert_eq!(names("/one").len(), 2);
        write(&own, "knarr.service", "/two");
        assert_eq!(names("/one"), ["knarr-agent.service"]);
        assert_eq!(names("/two"), ["knarr.service"]);
    }

    #[test]
    fn the_unit_has_no_placeholder_left() {
        let unit = Unit {
            role: "server".into(),
            program: "/tmp/knarr".into(),
            data: "/data".into(),
            flags: Vec::new(),
            is_placed: true,
        };
        assert!(!unit.text().contains('@'), "{}", unit.text());
        assert!(unit.text().ends_with("DataDirectory=/data\nPlaced=/tmp/knarr\n"), "{}", unit.text());
    }

    #[test]
    fn systemd_is_notified_over_its_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str().as_bytes(), "READY=1").unwrap();
        let mut received = [0; 16];
        let length = socket.recv(&mut received).unwrap();
        assert_eq!(&received[..length], b"READY=1");
    }
}
