//! Credential plugins of kubeconfig files: a program prints a token, a client certificate, or both, which are used until they
//! expire or a server refuses them.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use knarr_api::value::Read;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::process::Command;
use tokio::sync::Mutex;

use crate::outbound::Identity;

/// How long a plugin may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The limit of what it may print.
const MAX_OUTPUT: u64 = 1 << 20;
const GROUP: &str = "client.authentication.k8s.io";

/// A plugin, and what it printed last.
pub struct ExecPlugin {
    command: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    version: &'static str,
    /// What the plugin learns of the request: `KUBERNETES_EXEC_INFO`.
    info: String,
    hint: String,
    /// Held while the plugin runs, so that it runs once for all requests.
    current: Mutex<Option<Arc<ExecCredentials>>>,
}

/// What a plugin printed. It has no `Debug`, so that no log can show it.
pub struct ExecCredentials {
    pub token: String,
    pub identity: Option<Arc<Identity>>,
    expires: Option<Timestamp>,
}

impl ExecPlugin {
    /// Reads `exec` of a user. The messages are those of Kubernetes' clients.
    pub fn read(exec: &Value, user: &str, directory: &std::path::Path, cluster: &Value) -> Result<Self, String> {
        let invalid = |what: &str| Err(format!("invalid configuration: {what}"));
        let missing =
            |field: &str| invalid(&format!("{field} must be specified for {user} to use exec authentication plugin"));
        let command = exec.text(&["command"]);
        if command.is_empty() {
            return missing("command");
        }
        let version = match exec.text(&["apiVersion"]) {
            "" => return missing("apiVersion"),
            "client.authentication.k8s.io/v1" => "v1",
            "client.authentication.k8s.io/v1beta1" => "v1beta1",
            other => return Err(format!("exec plugin: invalid apiVersion {other:?}")),
        };
        let pair = |entry: &Value| (entry.text(&["name"]).to_owned(), entry.text(&["value"]).to_owned());
        let environment: Vec<_> = exec.items(&["env"]).iter().map(pair).collect();
        if environment.iter().any(|(name, _)| name.is_empty()) {
            return missing("env variable name");
        }
        match exec.text(&["interactiveMode"]) {
            "" if version == "v1" => return missing("interactiveMode"),
            "" | "Never" | "IfAvailable" => {}
            // A server has no terminal.
            "Always" => {
                return Err("exec plugin cannot support interactive mode: standard input is not a terminal".to_owned());
            }
            other => return invalid(&format!("invalid interactiveMode for {user}: {other:?}")),
        }
        // A name without a directory is searched for in PATH.
        let command = if command.contains('/') { directory.join(command) } else { PathBuf::from(command) };
        let mut spec = json!({ "interactive": false });
        if exec.flag(&["provideClusterInfo"]) == Some(true) {
            spec["cluster"] = cluster.clone();
        }
        let info = json!({ "kind": "ExecCredential", "apiVersion": format!("{GROUP}/{version}"), "spec": spec });
        Ok(ExecPlugin {
            command,
            arguments: exec.items(&["args"]).iter().filter_map(Value::as_str).map(str::to_owned).collect(),
            environment,
            version,
            info: info.to_string(),
            hint: exec.text(&["installHint"]).to_owned(),
            current: Mutex::new(None),
        })
    }

    /// The current credentials; runs the plugin if there are none or they have expired.
    pub async fn credentials(&self, now: Timestamp) -> Result<Arc<ExecCredentials>, String> {
        let mut current = self.current.lock().await;
        if let Some(kept) = current.as_ref().filter(|kept| kept.expires.is_none_or(|expires| now <= expires)) {
            return Ok(kept.clone());
        }
        let fresh = self.ask().await.map_err(|why| format!("getting credentials: {why}"))?;
        Ok(current.insert(fresh).clone())
    }

    /// Forgets credentials that a server refused, unless they were replaced already.
    pub async fn refused(&self, used: &Arc<ExecCredentials>) {
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, used)) {
            *current = None;
        }
    }

    async fn ask(&self) -> Result<Arc<ExecCredentials>, String> {
        let output = tokio::time::timeout(TIMEOUT, self.run()).await;
        let output = output.map_err(|_| format!("exec: executable {} timed out", self.command.display()))??;
        self.decode(&output).map(Arc::new)
    }

    async fn run(&self) -> Result<Vec<u8>, String> {
        let name = self.command.display();
        let mut command = Command::new(&self.command);
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.env("KUBERNETES_EXEC_INFO", &self.info);
        // The token with which servers join is none of a plugin's business.
        command.env_remove("KNARR_TOKEN");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        // Its own process group, so that its children can be ended with it.
        let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound if self.hint.is_empty() => format!("exec: executable {name} not found"),
            std::io::ErrorKind::NotFound => format!("exec: executable {name} not found\n\n{}", self.hint),
            _ => format!("exec: {error}"),
        })?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(|id| Group(Pid::from_raw(id)));
        let mut output = Vec::new();
        let pipe = child.stdout.take().ok_or("the plugin has no output")?;
        pipe.take(MAX_OUTPUT + 1).read_to_end(&mut output).await.map_err(|error| format!("exec: {error}"))?;
        if output.len() as u64 > MAX_OUTPUT {
            return Err(format!("exec: executable {name} printed more than {MAX_OUTPUT} bytes"));
        }
        let status = child.wait().await.map_err(|error| format!("exec: {error}"))?;
        // From here on the number may belong to others.
        std::mem::forget(group);
        match status.code() {
            Some(0) => Ok(output),
            // Go reports a process that a signal ended like this.
            code => Err(format!("exec: executable {name} failed with exit code {}", code.unwrap_or(-1))),
        }
    }

    /// The error never contains what the plugin printed.
    fn decode(&self, output: &[u8]) -> Result<ExecCredentials, String> {
        let printed: Value = serde_json::from_slice(output)
            .map_err(|_| "decoding stdout: couldn't get version/kind; json parse error".to_owned())?;
        let expected = format!("{GROUP}/{}", self.version);
        let (kind, version) = (printed.text(&["kind"]), printed.text(&["apiVersion"]));
        if kind != "ExecCredential" {
            return Err(format!("decoding stdout: no kind {kind:?} is registered for version {version:?}"));
        }
        if version != expected {
            return Err(format!(
                "exec plugin is configured to use API version {expected}, plugin returned version {version}"
            ));
        }
        let status = printed.at(&["status"]);
        if status.is_null() {
            return Err("exec plugin didn't return a status field".to_owned());
        }
        let token = status.text(&["token"]).to_owned();
        let (certificate, key) = (status.text(&["clientCertificateData"]), status.text(&["clientKeyData"]));
        if token.is_empty() && certificate.is_empty() && key.is_empty() {
            return Err("exec plugin didn't return a token or cert/key pair".to_owned());
        }
        if certificate.is_empty() != key.is_empty() {
            return Err("exec plugin returned only certificate or key, not both".to_owned());
        }
        let expires = match status.text(&["expirationTimestamp"]) {
            "" => None,
            text => Some(text.parse().map_err(|_| "decoding stdout: invalid expirationTimestamp".to_owned())?),
        };
        let identity =
            (!key.is_empty()).then(|| Arc::new(Identity { certificate: certificate.to_owned(), key: key.to_owned() }));
        Ok(ExecCredentials { token, identity, expires })
    }
}

/// Ends a process group, if its first process has not been waited for.
struct Group(Pid);

impl Drop for Group {
    fn drop(&mut self) {
        // Nothing is left of most.
        let _ = killpg(self.0, Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// The script is an argument: a file that is written and run at once may be busy.
    fn plugin(script: &str, more: Value) -> Result<ExecPlugin, String> {
        let mut exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "/bin/sh",
            "args": ["-c", script, "sh", "t"],
            "interactiveMode": "Never",
        });
        exec.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        ExecPlugin::read(&exec, "u", Path::new("/directory"), &json!({ "server": "https://a" }))
    }

    fn printing(status: &str) -> String {
        format!("echo '{{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1\"{status}}}'")
    }

    #[test]
    fn wrong_configurations_are_refused() {
        for (more, message) in [
            (
                json!({ "command": "" }),
                "invalid configuration: command must be specified for u to use exec authentication plugin",
            ),
            (
                json!({ "apiVersion": "client.authentication.k8s.io/v1alpha1" }),
                "exec plugin: invalid apiVersion \"client.authentication.k8s.io/v1alpha1\"",
            ),
            (
                json!({ "interactiveMode": "" }),
                "invalid configuration: interactiveMode must be specified for u to use exec authentication plugin",
            ),
            (json!({ "interactiveMode": "Often" }), "invalid configuration: invalid interactiveMode for u: \"Often\""),
            (
                json!({ "interactiveMode": "Always" }),
                "exec plugin cannot support interactive mode: standard input is not a terminal",
            ),
            (
                json!({ "env": [{ "value": "a" }] }),
                "invalid configuration: env variable name must be specified for u to use exec authentication plugin",
            ),
        ] {
            assert_eq!(plugin("", more).err().as_deref(), Some(message));
        }
    }

    #[tokio::test]
    async fn what_a_plugin_prints_is_checked() {
        let path = "/bin/sh";
        for (script, message) in [
            ("exit 3".to_owned(), format!("exec: executable {path} failed with exit code 3")),
            ("kill -9 $$".to_owned(), format!("exec: executable {path} failed with exit code -1")),
            ("echo secret".to_owned(), "decoding stdout: couldn't get version/kind; json parse error".to_owned()),
            (
                "echo '{\"kind\":\"ExecCredential\",\"apiVersion\":\"client.authentication.k8s.io/v1beta1\"}'".to_owned(),
                "exec plugin is configured to use API version client.authentication.k8s.io/v1, plugin returned version \
                 client.authentication.k8s.io/v1beta1"
                    .to_owned(),
            ),
            (printing(""), "exec plugin didn't return a status field".to_owned()),
            (printing(",\"status\":{}"), "exec plugin didn't return a token or cert/key pair".to_owned()),
            (
                printing(",\"status\":{\"clientKeyData\":\"k\"}"),
                "exec plugin returned only certificate or key, not both".to_owned(),
            ),
            ("head -c 2000000 /dev/zero".to_owned(), format!("exec: executable {path} printed more than 1048576 bytes")),
        ] {
            let plugin = plugin(&script, json!({})).unwrap();
            let failed = plugin.credentials(Timestamp::UNIX_EPOCH).await.err().unwrap();
            assert_eq!(failed, format!("getting credentials: {message}"), "{script}");
        }
        let absent = plugin("", json!({ "command": "./none", "installHint": "Install it." })).unwrap();
        let failed = absent.credentials(Timestamp::UNIX_EPOCH).await.err().unwrap();
        assert_eq!(failed, "getting credentials: exec: executable /directory/./none not found\n\nInstall it.");
    }

    #[tokio::test]
    async fn credentials_are_kept_until_they_expire_or_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let count = directory.path().join("count");
        let script = format!(
            "echo x >> {0}; n=$(wc -l < {0}); test \"$WHO\" = me || exit 1; {1}",
            count.display(),
            "echo \"{\\\"kind\\\":\\\"ExecCredential\\\",\\\"apiVersion\\\":\\\"client.authentication.k8s.io/v1\\\",\
             \\\"status\\\":{\\\"token\\\":\\\"$1-$n\\\",\\\"expirationTimestamp\\\":\\\"2000-01-01T00:00:00Z\\\"}}\""
        );
        let plugin = plugin(&script, json!({ "env": [{ "name": "WHO", "value": "me" }] })).unwrap();
        let before: Timestamp = "1999-12-31T00:00:00Z".parse().unwrap();
        let after: Timestamp = "2000-01-02T00:00:00Z".parse().unwrap();
        let first = plugin.credentials(before).await.unwrap();
        assert_eq!((first.token.as_str(), plugin.credentials(before).await.unwrap().token.as_str()), ("t-1", "t-1"));
        assert_eq!(plugin.credentials(after).await.unwrap().token, "t-2");
        // These were replaced already.
        plugin.refused(&first).await;
        let second = plugin.credentials(before).await.unwrap();
        assert_eq!(second.token, "t-2");
        plugin.refused(&second).await;
        assert_eq!(plugin.credentials(before).await.unwrap().token, "t-3");
    }

    #[tokio::test]
    async fn a_plugin_learns_of_the_cluster_if_it_asks_to() {
        for (provides, cluster) in [(true, json!({ "server": "https://a" })), (false, Value::Null)] {
            let more = json!({ "provideClusterInfo": provides });
            let plugin = plugin("", more).unwrap();
            let info: Value = serde_json::from_str(&plugin.info).unwrap();
            assert_eq!((&info["spec"]["cluster"], &info["spec"]["interactive"]), (&cluster, &json!(false)));
        }
    }
}
