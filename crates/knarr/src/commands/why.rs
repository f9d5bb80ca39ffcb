//! `knarr why`: diagnoses an object.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use futures::future::try_join_all;
use http::Request;
use jiff::Timestamp;
use knarr_api::value::Read as _;
use knarr_client::kube::{self, Client};
use knarr_why::{Evidence, Finding, explain, logs_needed};
use serde_json::Value;

use super::client_arguments::ClientArguments;
use super::{common, kinds};
use crate::output;

/// Number of containers whose logs are read, and of lines of each.
const LOGS: usize = 5;
const LINES: usize = 3;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// The object to diagnose: pod/web, deployment/web, service/web, job/import, pvc/data, ingress/web, node/a, …
    #[arg(value_name = "KIND/NAME", required = true, num_args = 1..=2)]
    object: Vec<String>,
    /// Namespace; by default that of the kubeconfig.
    #[arg(long, short)]
    namespace: Option<String>,
    /// The output format.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
    #[command(flatten)]
    cluster: ClientArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client = arguments.cluster.client().await?;
    let named = kinds::find(&client, &arguments.object, arguments.namespace.as_deref()).await?;
    let object = get(&client, &named.path()).await.with_context(|| format!("cannot read {}", named.in_journal()))?;
    let namespace = object.text(&["metadata", "namespace"]).to_owned();
    let lists = lists(&client, &namespace).await?;
    let mut evidence =
        Evidence { object, now: Timestamp::now(), lists, incomplete: Default::default(), logs: BTreeMap::new() };
    evidence.logs = logs(&client, &evidence).await;
    let findings = explain(&evidence);
    let mut out = std::io::stdout().lock();
    common::unless_closed(match arguments.output {
        Output::Text => {
            let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
            out.write_all(text(&arguments.object.join("/"), &findings, colour).as_bytes())
        }
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&findings)?),
    })
}

async fn get(client: &Client, path: &str) -> Result<Value, kube::Error> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request(request).await
}

/// All objects that may be evidence for a diagnosis in a namespace, except those that the user may not read.
async fn lists(client: &Client, namespace: &str) -> anyhow::Result<BTreeMap<String, Vec<Value>>> {
    let all = Evidence::needed().iter().map(|(plural, everywhere)| async move {
        let mut found: Option<Vec<Value>> = None;
        for path in Evidence::paths(plural, everywhere, namespace) {
            let items = list(client, &path).await.with_context(|| format!("cannot read {plural}"))?;
            found = match (found, items) {
                (Some(own), Some(items)) => Some(Evidence::join(own, items, namespace)),
                (own, items) => own.or(items),
            };
        }
        if found.is_none() {
            tracing::warn!(kind = plural, "no permission to read; skipped");
        }
        anyhow::Ok(found.map(|items| ((*plural).to_owned(), items)))
    });
    Ok(try_join_all(all).await?.into_iter().flatten().collect())
}

/// The objects that a path lists; `None` if the user may not read them.
async fn list(client: &Client, path: &str) -> Result<Option<Vec<Value>>, kube::Error> {
    match get(client, path).await {
        Ok(mut list) => {
            let items = list.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
            Ok(Some(items.unwrap_or_default()))
        }
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The last log lines of terminated containers. Missing logs are skipped.
async fn logs(client: &Client, evidence: &Evidence) -> BTreeMap<(String, String, String), Vec<String>> {
    let mut logs = BTreeMap::new();
    for (namespace, pod, container, runs_again) in logs_needed(evidence).into_iter().take(LOGS) {
        let path = format!(
            "/api/v1/namespaces/{namespace}/pods/{pod}/log?container={container}&tailLines={LINES}&previous={runs_again}"
        );
        let Ok(request) = Request::get(path).body(Vec::new()) else { continue };
        match client.request_text(request).await {
            Ok(text) => {
                let lines = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
                logs.insert((namespace, pod, container), lines);
            }
            Err(error) => tracing::debug!(%error, pod, container, "cannot read the log of a container"),
        }
    }
    logs
}

fn text(object: &str, findings: &[Finding], colour: bool) -> String {
    let paint = |code: &str, text: &str| if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() };
    if findings.is_empty() {
        return format!("{object}: {}\n", paint("32", "no problem found"));
    }
    let mut text = String::new();
    for finding in findings {
        text += &format!("{object}: {}\n", paint("1", &output::printable(&finding.cause)));
        for line in &finding.evidence {
            text += &format!("    {} {}\n", paint("2", "seen:"), output::printable(line));
        }
        text += &format!("    {}   {}\n", paint("36", "do:"), output::printable(&finding.fix));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_as_text() {
        let finding = Finding { cause: "c".into(), evidence: vec!["e".into()], fix: "f".into() };
        assert_eq!(text("pod/web", &[finding], false), "pod/web: c\n    seen: e\n    do:   f\n");
        assert_eq!(text("pod/web", &[], false), "pod/web: no problem found\n");
        let hostile = Finding { cause: "\x1b[2J".into(), evidence: vec!["\x07".into()], fix: "\x1bc".into() };
        assert!(!text("pod/web", &[hostile], false).contains(['\x1b', '\x07']));
    }
}
