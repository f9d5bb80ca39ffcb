//! `knarr journey`: an object's way through the system, as a timeline.

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use futures::AsyncBufReadExt as _;
use futures::TryStreamExt as _;
use http::Request;
use knarr_client::kube::Client;
use knarr_journey::{Step, Story, Style, lines, page, print, tell, traces};

use super::common;
use crate::journal;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// What to tell of: pod/web, deployment/web, job/import, node/a, …
    #[arg(value_name = "KIND/NAME")]
    object: String,
    #[arg(long, short, default_value = "default")]
    namespace: String,
    /// Go on telling what happens.
    #[arg(long, short)]
    follow: bool,
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Send the story to an OpenTelemetry collector too, such as http://127.0.0.1:4318.
    #[arg(long, value_name = "URL")]
    otlp: Option<http::Uri>,
    /// How to reach the cluster; the server's own kubeconfig when not given.
    #[arg(long, env = "KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
    Html,
    /// The JSON form of the OpenTelemetry protocol.
    Otlp,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let object = path(&arguments.object, &arguments.namespace)?;
    let kubeconfig = arguments.kubeconfig.clone().unwrap_or_else(|| common::kubeconfig(common::DATA.as_ref()));
    let client = common::connect(&kubeconfig).await?;
    if arguments.follow {
        return follow(&client, &object).await;
    }
    let request = Request::get(journal::PATH).body(Vec::new())?;
    let text = client.request_text(request).await.context("the journal cannot be read from the API server")?;
    let story = told(&journal::steps(text.as_bytes())?, &object)?;
    if let Some(collector) = &arguments.otlp {
        crate::otlp::send(collector, &traces(&story)).await?;
    }
    let mut out = std::io::stdout().lock();
    match arguments.output {
        Output::Text => out.write_all(print(&story, style()).as_bytes())?,
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&story)?)?,
        Output::Html => out.write_all(page(&story).as_bytes())?,
        Output::Otlp => writeln!(out, "{}", serde_json::to_string(&traces(&story))?)?,
    }
    Ok(())
}

fn style() -> Style {
    Style { colour: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() }
}

fn told(steps: &[Step], object: &str) -> anyhow::Result<Story> {
    tell(steps, object).with_context(|| {
        format!("nothing is known of {object}: the journal holds the newest steps only, and none of this object")
    })
}

/// Tells what is known, and then each step as it happens.
async fn follow(client: &Client, object: &str) -> anyhow::Result<()> {
    let request = Request::get(format!("{}?follow=true", journal::PATH)).body(Vec::new())?;
    let stream = client.request_stream(request).await.context("the journal cannot be read from the API server")?;
    let mut incoming = stream.lines();
    let mut steps: Vec<Step> = Vec::new();
    let mut shown: Vec<usize> = Vec::new();
    while let Some(line) = incoming.try_next().await? {
        steps.push(serde_json::from_str(&line).context("the journal is not understood")?);
        if let Some(story) = tell(&steps, object) {
            show_new(&story, &mut shown)?;
        }
    }
    Ok(())
}

/// Prints the lines of each chapter that were not there before.
fn show_new(story: &Story, shown: &mut Vec<usize>) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for (number, chapter) in story.chapters.iter().enumerate() {
        if shown.len() <= number {
            shown.push(0);
            writeln!(out, "{}, {}", story.object, chapter.title)?;
        }
        for line in lines(story, chapter, style()).iter().skip(shown[number]) {
            writeln!(out, "{line}")?;
        }
        shown[number] = chapter.moments.len();
    }
    out.flush()
}

/// Kinds by the names people call them, with what paths call them and whether they are in a namespace.
const KINDS: &[(&[&str], &str, bool)] = &[
    (&["po", "pod"], "pods", true),
    (&["deploy", "deployment"], "deployments", true),
    (&["rs", "replicaset"], "replicasets", true),
    (&["sts", "statefulset"], "statefulsets", true),
    (&["ds", "daemonset"], "daemonsets", true),
    (&["rc", "replicationcontroller"], "replicationcontrollers", true),
    (&["job"], "jobs", true),
    (&["cj", "cronjob"], "cronjobs", true),
    (&["svc", "service"], "services", true),
    (&["cm", "configmap"], "configmaps", true),
    (&["secret"], "secrets", true),
    (&["pvc", "persistentvolumeclaim"], "persistentvolumeclaims", true),
    (&["pv", "persistentvolume"], "persistentvolumes", false),
    (&["ing", "ingress"], "ingresses", true),
    (&["no", "node"], "nodes", false),
    (&["ns", "namespace"], "namespaces", false),
];

/// `pod/web` as the journal names it. A kind that is not in the table is taken for the plural it may be.
fn path(object: &str, namespace: &str) -> anyhow::Result<String> {
    let Some((kind, name)) = object.split_once('/').filter(|(kind, name)| !kind.is_empty() && !name.is_empty()) else {
        bail!("{object} is not of the form KIND/NAME, such as pod/web");
    };
    let kind = kind.to_lowercase();
    let known = KINDS.iter().find(|(names, plural, _)| *plural == kind || names.contains(&kind.as_str()));
    let (plural, namespaced) = known.map_or((kind.as_str(), true), |(_, plural, namespaced)| (*plural, *namespaced));
    Ok(if namespaced { format!("{plural}/{namespace}/{name}") } else { format!("{plural}/{name}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_named_as_people_do() {
        for (given, expected) in [
            ("pod/web", "pods/a/web"),
            ("Deploy/web", "deployments/a/web"),
            ("no/n1", "nodes/n1"),
            ("widgets/w", "widgets/a/w"),
        ] {
            assert_eq!(path(given, "a").unwrap(), expected);
        }
        assert!(path("web", "a").is_err());
        assert!(path("/web", "a").is_err());
    }
}
