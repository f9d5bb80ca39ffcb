//! The etcd member of this server: its record on disk, and the command line that runs it.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use knarr_store::EtcdMember;
use serde::{Deserialize, Serialize};

use super::credentials::EtcdFiles;

pub const CLIENT_PORT: u16 = 2379;
pub const PEER_PORT: u16 = 2380;
/// The size of its database beyond which etcd refuses writes until space is freed.
pub const QUOTA_BYTES: u64 = 8 << 30;

/// The record of a server's member. Later starts use the member without any flag if this record exists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    pub name: String,
    pub address: IpAddr,
    /// `name=peer URL` of all members when this one started for the first time.
    pub initial_cluster: String,
    /// Whether it joined a cluster, or started one.
    pub has_joined: bool,
    /// Whether etcd has data. A member whose data is lost must not start as a new one: it has acknowledged entries and votes that
    /// the others rely on, and the first member would start an empty cluster.
    #[serde(default)]
    has_data: bool,
    /// Distinguishes this cluster from an earlier one on the same hosts, whose members may still run and must not accept this
    /// member as one of theirs.
    #[serde(default = "former_token")]
    token: String,
}

/// The token of members that were recorded without one.
fn former_token() -> String {
    "knarr".to_owned()
}

/// The files of a member below a data directory.
#[derive(Clone, Debug)]
pub struct MemberFiles {
    directory: PathBuf,
    data: PathBuf,
}

impl MemberFiles {
    pub fn of(data: &Path) -> Self {
        Self { directory: data.join("etcd"), data: data.to_owned() }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// etcd's own data directory.
    pub fn etcd_data(&self) -> PathBuf {
        self.directory.join("data")
    }

    fn record(&self) -> PathBuf {
        self.directory.join("member.json")
    }

    /// The member of this server, if it has one.
    pub fn load(&self) -> anyhow::Result<Option<Member>> {
        let path = self.record();
        match std::fs::read(&path) {
            Ok(text) => {
                let member = serde_json::from_slice(&text);
                member.map(Some).with_context(|| format!("{} is invalid", path.display()))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    pub fn save(&self, member: &Member) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(member)?;
        write_private(&self.record(), text.as_bytes())
    }

    /// Records that etcd has data now.
    pub fn record_data(&self, member: &Member) -> anyhow::Result<()> {
        if member.has_data { Ok(()) } else { self.save(&member.with_data()) }
    }

    /// Refuses a member whose data is lost.
    pub fn check_data(&self, member: &Member) -> anyhow::Result<()> {
        if !member.has_data || self.etcd_data().join("member/wal").is_dir() {
            return Ok(());
        }
        bail!(
            "the data of this server's etcd is missing in {}. If there are other servers, run `knarr server remove {}` on one of \
             them, delete {} and join again with a new token. If not, restore a snapshot with `knarr server --cluster-reset \
             --cluster-reset-restore-path FILE`",
            self.etcd_data().display(),
            member.name,
            self.directory.display()
        )
    }

    pub fn credentials(&self) -> EtcdFiles {
        EtcdFiles::of(&self.data)
    }
}

/// Writes a file that only its owner can read, atomically.
pub fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let written = (|| {
        if let Some(directory) = path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let beside = path.with_extension("new");
        let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        knarr_files::rename_durably(&beside, path)
    })();
    written.with_context(|| format!("cannot write {}", path.display()))
}

pub fn peer_url(address: IpAddr) -> String {
    format!("https://{}", SocketAddr::new(address, PEER_PORT))
}

pub fn client_url(address: IpAddr) -> String {
    format!("https://{}", SocketAddr::new(address, CLIENT_PORT))
}

/// The URL at which this host reaches its own member.
pub fn local_url() -> String {
    client_url(IpAddr::from([127, 0, 0, 1]))
}

/// The server of a member: its name or, until it has started for the first time, its address.
pub fn server_name(member: &EtcdMember) -> String {
    if member.name.is_empty() { host(member).unwrap_or_default() } else { member.name.clone() }
}

/// The host in the peer URL of a member.
pub fn host(member: &EtcdMember) -> Option<String> {
    let uri: http::Uri = member.peer_urls.first()?.parse().ok()?;
    Some(uri.host()?.trim_matches(['[', ']']).to_owned())
}

/// How a member is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Normal,
    /// Saves a snapshot of the raft log as soon as possible.
    EarlySnapshot,
    /// The same, as the only member of a new cluster with the same data.
    ForceNewCluster,
}

impl Member {
    /// The first member of a new cluster.
    pub fn first(name: &str, address: IpAddr) -> Self {
        let initial_cluster = format!("{name}={}", peer_url(address));
        let random: [u8; 16] = rand::random();
        let token = random.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { name: name.to_owned(), address, initial_cluster, has_joined: false, has_data: false, token }
    }

    /// A further member. `initial_cluster` lists all members, this one included.
    pub fn joining(name: &str, address: IpAddr, initial_cluster: String) -> Self {
        Self { initial_cluster, has_joined: true, ..Self::first(name, address) }
    }

    /// The same member, once etcd has data.
    pub fn with_data(&self) -> Self {
        Self { has_data: true, ..self.clone() }
    }

    /// The same member at another address.
    pub fn at(&self, address: IpAddr) -> Self {
        let (old, new) = (peer_url(self.address), peer_url(address));
        let own = format!("{}={old}", self.name);
        let pairs = self
            .initial_cluster
            .split(',')
            .map(|pair| if pair == own { format!("{}={new}", self.name) } else { pair.to_owned() });
        Self { address, initial_cluster: pairs.collect::<Vec<_>>().join(","), ..self.clone() }
    }

    /// The command that runs etcd.
    pub fn command(&self, files: &MemberFiles, data: &Path, start: Start) -> Command {
        let mut command = Command::new("etcd");
        command.args(self.arguments(files, data, start)).current_dir("/");
        // With this variable, etcd would report its own readiness to systemd as that of Knarr.
        command.env_remove("NOTIFY_SOCKET");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ETCD_")) {
            command.env_remove(name);
        }
        // Before 3.5, etcd runs on other processors than amd64 only with this setting.
        if cfg!(target_arch = "aarch64") {
            command.env("ETCD_UNSUPPORTED_ARCH", "arm64");
        }
        command
    }

    fn arguments(&self, files: &MemberFiles, data: &Path, start: Start) -> Vec<String> {
        let pki = files.credentials();
        let file = |name: &str| pki.path(name).display().to_string();
        let own = client_url(self.address);
        let listen = if self.address.is_loopback() { own.clone() } else { format!("{},{own}", local_url()) };
        let mut arguments: Vec<String> = [
            ("name", self.name.clone()),
            ("data-dir", data.display().to_string()),
            ("listen-client-urls", listen),
            ("advertise-client-urls", own),
            ("listen-peer-urls", peer_url(self.address)),
            ("initial-advertise-peer-urls", peer_url(self.address)),
            ("initial-cluster", self.initial_cluster.clone()),
            ("initial-cluster-state", if self.has_joined { "existing" } else { "new" }.to_owned()),
            ("initial-cluster-token", self.token.clone()),
            ("client-cert-auth", "true".to_owned()),
            ("trusted-ca-file", file("ca.crt")),
            ("cert-file", file("server.crt")),
            ("key-file", file("server.key")),
            ("peer-client-cert-auth", "true".to_owned()),
            ("peer-trusted-ca-file", file("ca.crt")),
            ("peer-cert-file", file("peer.crt")),
            ("peer-key-file", file("peer.key")),
            ("quota-backend-bytes", QUOTA_BYTES.to_string()),
            // Entries since the last snapshot are held in memory.
            ("snapshot-count", if start == Start::Normal { "10000" } else { "1" }.to_owned()),
            // Without a leader, nothing can be read or written: half of etcd's own values, so that this takes less than a second.
            ("heartbeat-interval", "50".to_owned()),
            ("election-timeout", "500".to_owned()),
            // A member that was away must not disturb the leader when it comes back.
            ("pre-vote", "true".to_owned()),
            ("logger", "zap".to_owned()),
            ("log-level", "info".to_owned()),
        ]
        .into_iter()
        .map(|(flag, value)| format!("--{flag}={value}"))
        .collect();
        arguments.extend((start == Start::ForceNewCluster).then(|| "--force-new-cluster".to_owned()));
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_noted_and_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let files = MemberFiles::of(directory.path());
        assert_eq!(files.load().unwrap(), None);
        let member = Member::first("one", "10.0.0.1".parse().unwrap());
        files.save(&member).unwrap();
        assert_eq!(files.load().unwrap(), Some(member));
        std::fs::write(files.record(), "{").unwrap();
        assert!(files.load().is_err());
    }

    #[test]
    fn a_member_that_lost_its_data_does_not_start() {
        let directory = tempfile::tempdir().unwrap();
        let files = MemberFiles::of(directory.path());
        let member = Member::first("one", "10.0.0.1".parse().unwrap());
        files.check_data(&member).unwrap();
        std::fs::create_dir_all(files.etcd_data().join("member/wal")).unwrap();
        files.record_data(&member).unwrap();
        let member = files.load().unwrap().unwrap();
        files.check_data(&member).unwrap();
        std::fs::remove_dir_all(files.etcd_data()).unwrap();
        let refused = files.check_data(&member).unwrap_err().to_string();
        assert!(refused.contains("knarr server remove one"), "{refused}");
    }

    #[test]
    fn a_server_that_never_started_is_named_by_its_address() {
        let member = |name: &str, peer: &str| EtcdMember {
            id: 1,
            name: name.to_owned(),
            peer_urls: vec![peer.to_owned()],
            client_urls: vec![],
            is_learner: true,
        };
        assert_eq!(server_name(&member("one", "https://10.0.0.1:2380")), "one");
        assert_eq!(server_name(&member("", "https://10.0.0.1:2380")), "10.0.0.1");
        assert_eq!(server_name(&member("", "https://[fd00::1]:2380")), "fd00::1");
    }

    #[test]
    fn members_of_a_former_cluster_are_strangers() {
        let address = "10.0.0.1".parse().unwrap();
        let token = |member: &Member| {
            let files = MemberFiles::of(Path::new("/data"));
            let arguments = member.arguments(&files, &files.etcd_data(), Start::Normal);
            arguments.into_iter().find(|argument| argument.starts_with("--initial-cluster-token=")).unwrap()
        };
        assert_ne!(token(&Member::first("one", address)), token(&Member::first("one", address)));
        let old = r#"{"name": "one", "address": "10.0.0.1", "initialCluster": "", "hasJoined": false}"#;
        let old: Member = serde_json::from_str(old).unwrap();
        assert_eq!(token(&old), "--initial-cluster-token=knarr");
    }

    #[test]
    fn a_member_moves_to_another_address() {
        let mut member = Member::first("one", "10.0.0.1".parse().unwrap());
        member.initial_cluster = "two=https://10.0.0.2:2380,one=https://10.0.0.1:2380".into();
        let moved = member.at("10.0.0.9".parse().unwrap());
        assert_eq!(moved.initial_cluster, "two=https://10.0.0.2:2380,one=https://10.0.0.9:2380");
        assert_eq!(moved.address.to_string(), "10.0.0.9");
    }

    #[test]
    fn the_command_line_names_addresses_and_certificates() {
        let files = MemberFiles::of(Path::new("/data"));
        let member = Member::first("one", "fd00::1".parse().unwrap());
        let arguments = member.arguments(&files, &files.etcd_data(), Start::ForceNewCluster);
        for expected in [
            "--listen-client-urls=https://127.0.0.1:2379,https://[fd00::1]:2379",
            "--initial-cluster=one=https://[fd00::1]:2380",
            "--initial-cluster-state=new",
            "--peer-key-file=/data/pki/etcd/peer.key",
            "--client-cert-auth=true",
            "--peer-client-cert-auth=true",
            "--force-new-cluster",
        ] {
            assert!(arguments.iter().any(|argument| argument == expected), "{expected}: {arguments:?}");
        }
    }
}
