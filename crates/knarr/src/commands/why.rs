//! `knarr why`: why something is not as it should be, in plain words.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use http::Request;
use jiff::Timestamp;
use knarr_client::kube::{self, Client};
use knarr_why::{Evidence, Finding, explain};
use serde_json::Value;

use super::common;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// What to explain: pod/web, deployment/web, statefulset/db, job/import, …
    #[arg(value_name = "KIND/NAME")]
    object: String,
    #[arg(long, short, default_value = "default")]
    namespace: String,
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// How to reach the cluster; the server's own kubeconfig when not given.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

/// Kinds that can be explained: the names people call them, and where they are.
const KINDS: &[(&[&str], &str)] = &[
    (&["pod", "po", "pods"], "/api/v1/namespaces/{}/pods"),
    (&["deployment", "deploy", "deployments"], "/apis/apps/v1/namespaces/{}/deployments"),
    (&["replicaset", "rs", "replicasets"], "/apis/apps/v1/namespaces/{}/replicasets"),
    (&["statefulset", "sts", "statefulsets"], "/apis/apps/v1/namespaces/{}/statefulsets"),
    (&["daemonset", "ds", "daemonsets"], "/apis/apps/v1/namespaces/{}/daemonsets"),
    (&["replicationcontroller", "rc", "replicationcontrollers"], "/api/v1/namespaces/{}/replicationcontrollers"),
    (&["job", "jobs"], "/apis/batch/v1/namespaces/{}/jobs"),
    (&["cronjob", "cj", "cronjobs"], "/apis/batch/v1/namespaces/{}/cronjobs"),
];

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let path = path(&arguments.object, &arguments.namespace)?;
    let kubeconfig = arguments.kubeconfig.clone().unwrap_or_else(|| common::kubeconfig(common::DATA.as_ref()));
    let client = common::connect(&kubeconfig).await?;
    let object = get(&client, &path).await.with_context(|| format!("cannot read {}", arguments.object))?;
    let findings = explain(&Evidence { object, now: Timestamp::now(), lists: lists(&client).await? });
    let mut out = std::io::stdout().lock();
    match arguments.output {
        Output::Text => out.write_all(text(&arguments.object, &findings).as_bytes())?,
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&findings)?)?,
    }
    Ok(())
}

fn path(object: &str, namespace: &str) -> anyhow::Result<String> {
    let Some((kind, name)) = object.split_once('/').filter(|(kind, name)| !kind.is_empty() && !name.is_empty()) else {
        bail!("{object} is not of the form KIND/NAME, such as pod/web");
    };
    let kind = kind.to_lowercase();
    let Some((_, place)) = KINDS.iter().find(|(names, _)| names.contains(&kind.as_str())) else {
        let known: Vec<&str> = KINDS.iter().map(|(names, _)| names[0]).collect();
        bail!("{kind} cannot be explained; these can: {}", known.join(", "));
    };
    Ok(format!("{}/{name}", place.replace("{}", namespace)))
}

async fn get(client: &Client, path: &str) -> Result<Value, kube::Error> {
    let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
    client.request(request).await
}

/// All that may tell something. What the user may not read is left out.
async fn lists(client: &Client) -> anyhow::Result<BTreeMap<String, Vec<Value>>> {
    let mut lists = BTreeMap::new();
    for (plural, path) in Evidence::needed() {
        match get(client, path).await {
            Ok(mut list) => {
                let items = list.get_mut("items").and_then(Value::as_array_mut).map(std::mem::take);
                lists.insert((*plural).to_owned(), items.unwrap_or_default());
            }
            Err(kube::Error::Api(status)) if status.code == 403 => {
                tracing::warn!(kind = plural, "may not be read, and is left out");
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {plural}")),
        }
    }
    Ok(lists)
}

fn text(object: &str, findings: &[Finding]) -> String {
    if findings.is_empty() {
        return format!("{object}: nothing wrong was found\n");
    }
    let mut text = String::new();
    for finding in findings {
        text += &format!("{object}: {}\n", finding.cause);
        for line in &finding.evidence {
            text += &format!("    seen: {line}\n");
        }
        text += &format!("    do:   {}\n", finding.fix);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_explained() {
        assert_eq!(path("po/web", "a").unwrap(), "/api/v1/namespaces/a/pods/web");
        assert_eq!(path("Deployment/web", "a").unwrap(), "/apis/apps/v1/namespaces/a/deployments/web");
        assert!(path("node/n", "a").unwrap_err().to_string().contains("these can: pod, deployment"));
        assert!(path("web", "a").is_err());
    }
}
