//! Runs a credential provider plugin: a request on standard input, a response on standard output.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use super::config::ProviderConfig;

/// How long a plugin may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The limit of a response, and of the messages that are kept.
const MAX_RESPONSE: u64 = 1 << 20;
const MAX_MESSAGES: u64 = 4 << 10;

/// The request to a plugin. It has no `Debug`, so that no log can show the token.
#[derive(Clone, Default)]
pub struct Request {
    pub image: String,
    pub token: Option<String>,
    pub annotations: BTreeMap<String, String>,
}

/// The response of a plugin. It has no `Debug`, so that no log can show it.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Response {
    // Checked before the rest is read.
    #[serde(rename = "kind")]
    _kind: String,
    #[serde(rename = "apiVersion")]
    _api_version: String,
    #[serde(default)]
    pub cache_key_type: String,
    #[serde(default)]
    pub cache_duration: Option<String>,
    #[serde(default)]
    pub auth: Option<BTreeMap<String, Login>>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Login {
    pub username: String,
    pub password: String,
}

/// A plugin's program.
pub struct Plugin {
    pub config: ProviderConfig,
    pub program: PathBuf,
    pub timeout: Duration,
}

impl Plugin {
    pub fn new(config: ProviderConfig, program: PathBuf) -> Self {
        Self { config, program, timeout: TIMEOUT }
    }

    /// Asks the plugin. The error never contains what the plugin wrote to standard output.
    pub async fn ask(&self, request: &Request) -> Result<Response, String> {
        let (name, image) = (&self.config.name, &request.image);
        let failed =
            |reason: String| format!("error execing credential provider plugin {name} for image {image}: {reason}");
        let output = tokio::time::timeout(self.timeout, self.run(request)).await;
        let output = output.map_err(|_| failed("context deadline exceeded: ".to_owned()))?.map_err(failed)?;
        decode(&output, &self.config.api_version)
    }

    async fn run(&self, request: &Request) -> Result<Vec<u8>, String> {
        let mut command = Command::new(&self.program);
        command.args(&self.config.arguments).envs(self.config.environment.iter().map(|(name, value)| (name, value)));
        // The token with which this node joined is none of a plugin's business.
        command.env_remove("KNARR_TOKEN");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Its own process group, so that its children can be ended with it.
        let mut child = command.process_group(0).kill_on_drop(true).spawn().map_err(|error| error.to_string())?;
        let group = child.id().and_then(|id| i32::try_from(id).ok()).map(|id| Group(Pid::from_raw(id)));
        let (Some(mut input), Some(output), Some(messages)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err("the plugin has no pipes".to_owned());
        };
        let asked = encode(request, &self.config.api_version);
        let write = async move {
            // A plugin that does not read its input may still respond.
            let _ = input.write_all(&asked).await;
            drop(input);
        };
        let ((), output, messages) = tokio::join!(write, read(output, MAX_RESPONSE), read(messages, MAX_MESSAGES));
        let (output, messages) = (output.map_err(|error| error.to_string())?, messages.unwrap_or_default());
        // The pipes are no longer read: a plugin that writes on is killed.
        if output.len() as u64 > MAX_RESPONSE {
            return Err(format!("the response has more than {MAX_RESPONSE} bytes"));
        }
        let status = child.wait().await.map_err(|error| error.to_string())?;
        // From here on the number may belong to others.
        std::mem::forget(group);
        if !status.success() {
            let reason = match status.code() {
                Some(code) => format!("exit status {code}"),
                None => status.to_string(),
            };
            return Err(format!("{reason}: {}", shown(&messages, request.token.as_deref())));
        }
        Ok(output)
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

/// Reads at most one byte more than the limit; of messages the rest is read and dropped.
async fn read(pipe: impl AsyncRead + Unpin, limit: u64) -> std::io::Result<Vec<u8>> {
    let mut pipe = pipe.take(limit + 1);
    let mut bytes = Vec::new();
    pipe.read_to_end(&mut bytes).await?;
    if limit == MAX_MESSAGES {
        bytes.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        tokio::io::copy(&mut pipe.into_inner(), &mut tokio::io::sink()).await?;
    }
    Ok(bytes)
}

/// A plugin's messages as they may be logged: without the token it was given.
fn shown(messages: &[u8], token: Option<&str>) -> String {
    let text = String::from_utf8_lossy(messages).trim_end().to_owned();
    match token.filter(|token| !token.is_empty()) {
        Some(token) => text.replace(token, "REDACTED"),
        None => text,
    }
}

fn encode(request: &Request, api_version: &str) -> Vec<u8> {
    let mut message = json!({ "kind": "CredentialProviderRequest", "apiVersion": api_version, "image": request.image });
    if let Some(token) = &request.token {
        message["serviceAccountToken"] = Value::from(token.as_str());
    }
    if !request.annotations.is_empty() {
        message["serviceAccountAnnotations"] = json!(request.annotations);
    }
    let mut bytes = message.to_string().into_bytes();
    bytes.push(b'\n');
    bytes
}

fn decode(output: &[u8], api_version: &str) -> Result<Response, String> {
    #[derive(Default, Deserialize)]
    #[serde(rename_all = "camelCase", default)]
    struct Head {
        kind: String,
        api_version: String,
    }
    // Errors of the parser are left out: they may quote credentials.
    let head: Head = serde_json::from_slice(output)
        .map_err(|_| "error reading GVK from response: couldn't get version/kind; json parse error".to_owned())?;
    if head.api_version != api_version {
        return Err(format!(
            "apiVersion from credential plugin response did not match expected apiVersion:{api_version}, actual apiVersion:{}",
            head.api_version
        ));
    }
    let response = serde_json::from_slice(output).ok().filter(|_| head.kind == "CredentialProviderResponse");
    response.ok_or_else(|| "error decoding credential provider plugin response from stdout".to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::images::providers::config::V1;

    /// A plugin that is this shell script.
    fn plugin(directory: &std::path::Path, script: &str) -> Plugin {
        let program = directory.join("plugin");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("executable");
        let config = ProviderConfig {
            name: "plugin".into(),
            api_version: V1.into(),
            arguments: vec!["first".into()],
            environment: vec![("OWN".into(), "value".into())],
            ..ProviderConfig::default()
        };
        Plugin::new(config, program)
    }

    fn response(rest: &str) -> String {
        format!("{{\"kind\":\"CredentialProviderResponse\",\"apiVersion\":\"{V1}\"{rest}}}")
    }

    fn request() -> Request {
        Request {
            image: "r.io/a".into(),
            token: Some("TOKEN".into()),
            annotations: [("a".to_owned(), "b".to_owned())].into(),
        }
    }

    #[tokio::test]
    async fn a_plugin_gets_the_request_and_its_environment() {
        let directory = tempfile::tempdir().expect("a directory");
        let seen = directory.path().join("seen");
        let text = response(",\"cacheKeyType\":\"Image\",\"auth\":{\"r.io\":{\"username\":\"u\",\"password\":\"p\"}}");
        let script = format!("cat > {0}; echo \"$1 $OWN ${{PATH:+set}}\" >> {0}; echo '{text}'", seen.display());
        let response =
            plugin(directory.path(), &script).ask(&request()).await.unwrap_or_else(|error| panic!("{error}"));
        let logins = response.auth.expect("credentials");
        assert_eq!((logins["r.io"].username.as_str(), logins["r.io"].password.as_str()), ("u", "p"));
        let expected = format!(
            "{{\"apiVersion\":\"{V1}\",\"image\":\"r.io/a\",\"kind\":\"CredentialProviderRequest\",\
             \"serviceAccountAnnotations\":{{\"a\":\"b\"}},\"serviceAccountToken\":\"TOKEN\"}}\nfirst value set\n"
        );
        let text = std::fs::read_to_string(seen).expect("read");
        let (line, rest) = text.split_once('\n').expect("two lines");
        let sorted: BTreeMap<String, Value> = serde_json::from_str(line).expect("JSON");
        assert_eq!(format!("{}\n{rest}", serde_json::to_string(&sorted).expect("JSON")), expected);
    }

    #[tokio::test]
    async fn failures_are_reported_without_credentials() {
        let directory = tempfile::tempdir().expect("a directory");
        let failed = "error execing credential provider plugin plugin for image r.io/a: ";
        let decoding = "error decoding credential provider plugin response from stdout".to_owned();
        for (script, expected) in [
            ("cat >&2; exit 3".to_owned(), None),
            ("echo SECRET; echo no >&2; exit 3".to_owned(), Some(format!("{failed}exit status 3: no"))),
            ("sleep 60 & wait".to_owned(), Some(format!("{failed}context deadline exceeded: "))),
            ("sleep 60 & exit 0".to_owned(), Some(format!("{failed}context deadline exceeded: "))),
            (
                "echo SECRET".to_owned(),
                Some("error reading GVK from response: couldn't get version/kind; json parse error".to_owned()),
            ),
            (format!("echo '{}'", response(",\"SECRET\":1")), Some(decoding.clone())),
            (format!("echo '{}'", response("").replace("Response", "Request")), Some(decoding)),
            (
                format!("echo '{}'", response("").replace("/v1", "/v1beta1")),
                Some(format!(
                    "apiVersion from credential plugin response did not match expected apiVersion:{V1}, actual apiVersion:{V1}beta1"
                )),
            ),
            ("yes SECRET".to_owned(), Some(format!("{failed}the response has more than 1048576 bytes"))),
        ] {
            let mut plugin = plugin(directory.path(), &script);
            plugin.timeout = Duration::from_secs(2);
            let Err(error) = plugin.ask(&request()).await else { panic!("{script}") };
            assert!(!error.contains("TOKEN") && !error.contains("SECRET"), "{error}");
            if let Some(expected) = expected {
                assert_eq!(error, expected, "{script}");
            } else {
                assert!(error.starts_with(&format!("{failed}exit status 3: {{")), "{error}");
                assert!(error.contains("REDACTED"), "{error}");
            }
        }
    }

    #[tokio::test]
    async fn what_a_plugin_started_ends_with_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("pid");
        let mut plugin = plugin(directory.path(), &format!("sleep 600 & echo $! > {}; wait", file.display()));
        plugin.timeout = Duration::from_secs(2);
        assert!(plugin.ask(&request()).await.is_err());
        let process: i32 = std::fs::read_to_string(file).expect("read").trim().parse().expect("a number");
        let state = || std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        while state().contains("sleep") && !state().contains(") Z") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
