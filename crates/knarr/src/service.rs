//! The systemd service: the unit file, and notifications to systemd.
//!
//! A unit names its data directory, so that `stop` and `uninstall` find it.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};

const UNITS: &str = "/etc/systemd/system";
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
        format!(
            "[Unit]\n\
             Description=Knarr, Kubernetes as one program ({role})\n\
             After=network-online.target\n\
             Wants=network-online.target\n\
             StartLimitIntervalSec=0\n\
             \n\
             [Service]\n\
             Type=notify\n\
             ExecStart={command}\n\
             KillMode=process\n\
             Delegate=yes\n\
             LimitNOFILE=1048576\n\
             LimitNPROC=infinity\n\
             LimitCORE=infinity\n\
             TasksMax=infinity\n\
             OOMScoreAdjust=-999\n\
             TimeoutStartSec=0\n\
             Restart=always\n\
             RestartSec=100ms\n\
             RestartSteps=8\n\
             RestartMaxDelaySec=5\n\
             \n\
             [Install]\n\
             WantedBy=multi-user.target\n\
             \n\
             [X-Knarr]\n\
             DataDirectory={data}\n{placed}",
            role = self.role,
            data = self.data.display(),
            placed =
                if self.is_placed { format!("{INSTALLED_KEY}{}\n", self.program.display()) } else { String::new() },
        )
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

/// Stops the service of a data directory. Returns whether there is one.
pub fn stop(data: &Path) -> anyhow::Result<bool> {
    let found = units(Path::new(UNITS), data);
    if !is_systemd_running() {
        return Ok(false);
    }
    for unit in &found {
        systemctl(&["stop", &name_of(unit)])?;
    }
    Ok(!found.is_empty())
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
    if !found.is_empty() && is_systemd_running() {
        systemctl(&["daemon-reload"])?;
    }
    Ok(())
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
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("systemctl {} failed: {}", arguments.join(" "), said.trim());
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
