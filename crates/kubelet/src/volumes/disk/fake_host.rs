//! A host whose storage tools are recorded, and fail where a test says so.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use tempfile::TempDir;

use super::host::{Command, FileSystem, Host};
use super::*;
use crate::volumes::command::{Failure, Status};

pub const TARGET: &str = "iqn.2003-01.io.example:disk";
pub const PASSWORD: &str = "correct horse";

#[derive(Default)]
pub struct State {
    pub mounts: BTreeSet<PathBuf>,
    /// The calls so far, with their arguments.
    pub calls: Vec<String>,
    pub fail_at: Option<usize>,
    pub missing: Option<&'static str>,
}

/// A host with an iSCSI target whose portals are `10.0.0.1:3260` and `10.0.0.2:3260`, with two units each.
pub struct FakeHost {
    root: TempDir,
    pub settings: Settings,
    pub state: Mutex<State>,
}

impl FakeHost {
    pub fn new() -> Self {
        let root = tempfile::tempdir().expect("a directory");
        let settings = Settings::new("n", root.path().join("kubelet"), "/run/x.sock".into());
        Self { root, settings, state: Mutex::default() }
    }

    pub fn failing_at(call: usize) -> Self {
        let host = Self::new();
        host.state.lock().fail_at = Some(call);
        host
    }

    pub fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    pub fn link(&self, directory: &str, name: &str, device: &str) {
        self.put(&format!("/dev/{device}"), "");
        self.put(&format!("/sys/block/{device}/device/delete"), "");
        let directory = self.path(&format!("/dev/disk/{directory}"));
        std::fs::create_dir_all(&directory).expect("made");
        let link = directory.join(name);
        if link.symlink_metadata().is_err() {
            std::os::unix::fs::symlink(format!("../../{device}"), link).expect("linked");
        }
    }

    pub fn join_paths(&self, map: &str, paths: &[&str]) {
        self.put(&format!("/sys/block/{map}/dm/uuid"), "mpath-1");
        for path in paths {
            self.put(&format!("/sys/block/{map}/slaves/{path}"), "");
        }
    }

    fn log_in(&self, portal: &str) {
        let number = portal_number(portal);
        let session = format!("/sys/class/iscsi_host/host{number}/device/session{number}");
        self.put(&format!("{session}/iscsi_session/session{number}/targetname"), TARGET);
        let connection = format!("{session}/connection{number}:0/iscsi_connection/connection{number}:0");
        for (file, text) in [("address", format!("10.0.0.{number}\n")), ("port", "3260\n".to_string())] {
            self.put(&format!("{connection}/{file}"), &text);
            self.put(&format!("{connection}/persistent_{file}"), &text);
        }
        self.put(&format!("/sys/class/scsi_host/host{number}/scan"), "");
        for unit in 0..2 {
            let device = format!("sd{number}{unit}");
            self.put(&format!("{session}/target{number}:0:0/{number}:0:0:{unit}/block/{device}"), "");
            self.link("by-path", &format!("ip-{portal}-iscsi-{TARGET}-lun-{unit}"), &device);
        }
        if self.sessions() == 2 {
            self.join_paths("dm-0", &["sd10", "sd20"]);
        }
    }

    fn log_out(&self, portal: &str) {
        let number = portal_number(portal);
        for unit in 0..2 {
            let link = format!("/dev/disk/by-path/ip-{portal}-iscsi-{TARGET}-lun-{unit}");
            let _ = std::fs::remove_file(self.path(&link));
        }
        let _ = std::fs::remove_dir_all(self.path(&format!("/sys/class/iscsi_host/host{number}")));
    }

    pub fn sessions(&self) -> usize {
        super::host::names(&self.path("/sys/class/iscsi_host")).len()
    }

    /// Records a call, which fails if a test says so.
    fn call(&self, text: String) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let number = state.calls.len();
        state.calls.push(text);
        match state.fail_at == Some(number) {
            true => Err(Failure { status: Status::Exit(8), output: format!("failed; {PASSWORD}") }),
            false => Ok(()),
        }
    }

    pub fn calls(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().calls)
    }

    pub async fn mount(&self, uid: &str, source: &DiskSource) -> Result<PathBuf, VolumeError> {
        let keys = ["discovery.sendtargets.auth.password", "node.session.auth.password"];
        let secret = keys.map(|key| (key.to_string(), PASSWORD.to_string())).into();
        mount_on(self, &self.settings, uid, source, secret).await
    }

    /// Removes a pod as its worker does: its directory goes last.
    pub async fn unmount(&self, uid: &str) -> Result<(), VolumeError> {
        unmount_pod_on(self, &self.settings, uid).await?;
        std::fs::remove_dir_all(self.settings.pod_directory(uid)).expect("removed");
        Ok(())
    }

    pub fn assert_clean(&self, context: &str) {
        assert_eq!(self.state.lock().mounts, BTreeSet::new(), "{context}");
        assert_eq!(self.sessions(), 0, "{context}");
        for plugin in PLUGINS {
            let parent = self.settings.plugin_root.join("plugins/kubernetes.io").join(plugin);
            assert_eq!(super::host::names(&parent), Vec::<String>::new(), "{context}");
        }
    }
}

fn portal_number(portal: &str) -> usize {
    let octet = portal.split(':').next().and_then(|address| address.rsplit('.').next()).expect("an address");
    octet.parse().expect("a number")
}

fn failed(failure: &Failure) -> VolumeError {
    VolumeError::Path(failure.status.to_string())
}

impl Host for FakeHost {
    async fn run(&self, command: &Command) -> Result<String, Failure> {
        if self.state.lock().missing == Some(command.program) {
            return Err(Failure { status: Status::Missing(command.program.to_string()), output: String::new() });
        }
        let arguments: Vec<&str> = command.arguments.iter().map(String::as_str).collect();
        self.call(format!("{} {}", command.program, arguments.join(" ")))?;
        let value = |option: &str| {
            let position = arguments.iter().position(|argument| *argument == option).expect("the option");
            arguments[position + 1]
        };
        match command.program {
            "iscsiadm" if arguments.contains(&"--login") => self.log_in(value("-p")),
            "iscsiadm" if arguments.contains(&"--logout") => self.log_out(value("-p")),
            "iscsiadm" if arguments.contains(&"show") => {
                let shown = "# BEGIN RECORD\niface.iscsi_ifacename = default\niface.transport_name = tcp\n\
                             iface.initiatorname = <empty>\n# END RECORD";
                return Ok(shown.to_string());
            }
            "multipath" => {
                let map = value("-f").trim_start_matches("/dev/").to_string();
                std::fs::remove_dir_all(self.path("/sys/block").join(map)).expect("there is such a device");
            }
            "umount" => {
                assert!(self.state.lock().mounts.remove(Path::new(value("--"))), "it was mounted");
            }
            _ => {}
        }
        Ok(String::new())
    }

    fn path(&self, absolute: &str) -> PathBuf {
        self.root.path().join(absolute.trim_start_matches('/'))
    }

    async fn mount(&self, device: &str, system: &FileSystem, target: &Path) -> Result<(), VolumeError> {
        let how = if system.read_only { "ro" } else { "rw" };
        self.call(format!("mount {device} {} {how} {}", system.kind, system.options.join(",")))
            .map_err(|failure| failed(&failure))?;
        self.state.lock().mounts.insert(target.to_path_buf());
        Ok(())
    }

    fn is_mounted(&self, path: &Path) -> bool {
        self.state.lock().mounts.contains(path)
    }

    fn bind(&self, _: &Path, to: &Path) -> Result<(), VolumeError> {
        self.call("bind".to_string()).map_err(|failure| failed(&failure))?;
        self.state.lock().mounts.insert(to.to_path_buf());
        Ok(())
    }

    fn unbind_below(&self, directory: &Path) -> Result<(), VolumeError> {
        self.call("unbind".to_string()).map_err(|failure| failed(&failure))?;
        self.state.lock().mounts.retain(|mount| !mount.starts_with(directory));
        Ok(())
    }
}
