//! `knarr journey`: the timeline of an object through all components.

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Write as _};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use futures::{AsyncBufReadExt as _, StreamExt as _};
use http::Request;
use knarr_client::kube::Client;
use knarr_journey::{
    Detail, Step, Style, Timeline, build_timeline, render_entry, render_html, render_otlp, render_outcome, render_text,
    render_title,
};

use super::client_arguments::ClientArguments;
use super::{common, kinds};
use crate::journal;
use crate::output;

/// How many steps are remembered while following; as many as a journal holds, and some more.
const MAX_STEPS: usize = 10_000;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// The object: pod/web, deployment/web, job/import, service/web, node/a, …
    #[arg(value_name = "KIND/NAME", required = true, num_args = 1..=2)]
    object: Vec<String>,
    /// Namespace; by default that of the kubeconfig.
    #[arg(long, short)]
    namespace: Option<String>,
    /// Keep printing steps as they happen, also for an object that does not exist yet.
    #[arg(long, short, conflicts_with_all = ["output", "otlp"])]
    follow: bool,
    /// Print repeated steps, too: each reconciliation, each status write without a change.
    #[arg(long, short)]
    all: bool,
    /// The output format.
    #[arg(long, short, value_enum, default_value_t = Output::Text)]
    output: Output,
    /// Send the timeline to an OpenTelemetry collector too, such as http://127.0.0.1:4318.
    #[arg(long, value_name = "URL")]
    otlp: Option<http::Uri>,
    #[command(flatten)]
    cluster: ClientArguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Lines for a terminal.
    Text,
    Json,
    /// A single HTML page.
    Html,
    /// The JSON form of the OpenTelemetry protocol.
    Otlp,
}

pub async fn run(arguments: Arguments) -> anyhow::Result<()> {
    let client = arguments.cluster.client().await?;
    let named = kinds::find(&client, &arguments.object, arguments.namespace.as_deref()).await?;
    let object = named.in_journal();
    let detail = if arguments.all { Detail::All } else { Detail::Changes };
    if arguments.follow {
        return follow(&client, &object, detail).await;
    }
    let request = Request::get(journal::PATH).body(Vec::new())?;
    let text = client.request_text(request).await.context("cannot read the journal from the API server")?;
    let steps = journal::steps(text.as_bytes()).context("cannot parse the journal")?;
    let steps: Vec<Step> = steps.into_iter().map(printable).collect();
    let timeline = build_timeline(&steps, &object, detail).with_context(|| {
        format!(
            "nothing is known of {object}: does it exist (`kubectl get`)? The journal holds the newest steps of the cluster \
             since the server started, and none is of this object"
        )
    })?;
    if let Some(collector) = &arguments.otlp {
        crate::otlp::send(collector, &render_otlp(&timeline)).await?;
    }
    show(&timeline, arguments.output)
}

fn show(timeline: &Timeline, output: Output) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    let written = match output {
        Output::Text => out.write_all(render_text(timeline, style()).as_bytes()),
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(timeline)?),
        Output::Html => out.write_all(render_html(timeline).as_bytes()),
        Output::Otlp => writeln!(out, "{}", serde_json::to_string(&render_otlp(timeline))?),
    };
    common::unless_closed(written)
}

fn style() -> Style {
    let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    Style { colour, width: common::terminal_width() }
}

/// The same step with text that does not steer a terminal: pods and nodes choose some of it.
fn printable(mut step: Step) -> Step {
    for text in [&mut step.object, &mut step.process].into_iter().chain(step.fields.values_mut()) {
        *text = output::printable(text);
    }
    step.step = output::printable(&step.step).into();
    step
}

/// Prints the known steps, and then each step as it happens.
async fn follow(client: &Client, object: &str, detail: Detail) -> anyhow::Result<()> {
    let request = Request::get(format!("{}?follow=true", journal::PATH)).body(Vec::new())?;
    let stream = client.request_stream(request).await.context("cannot read the journal from the API server")?;
    // Steps that arrive together are printed together.
    let mut incoming = stream.lines().ready_chunks(MAX_STEPS);
    let mut steps: Vec<Step> = Vec::new();
    let mut printer = StepPrinter::default();
    while let Some(lines) = incoming.next().await {
        for line in lines {
            let line = line.context("the API server closed the journal")?;
            steps.push(printable(serde_json::from_str(&line).context("cannot parse the journal")?));
        }
        steps.drain(..steps.len().saturating_sub(MAX_STEPS));
        match build_timeline(&steps, object, detail) {
            Some(timeline) => common::unless_closed(printer.print(&timeline, &mut std::io::stdout().lock(), style()))?,
            None => printer.wait(object),
        }
    }
    Ok(())
}

/// Prints steps once. Steps of other nodes may arrive late; they are printed when they arrive.
#[derive(Default)]
struct StepPrinter {
    printed: BTreeSet<(u64, String, String)>,
    titles: BTreeSet<(u64, &'static str)>,
    outcomes: BTreeSet<(u64, String)>,
    waits: bool,
}

impl StepPrinter {
    fn print(&mut self, timeline: &Timeline, out: &mut impl std::io::Write, style: Style) -> std::io::Result<()> {
        for section in &timeline.sections {
            for entry in &section.entries {
                if !self.printed.insert((section.started + entry.after, entry.object.clone(), entry.message.clone())) {
                    continue;
                }
                if self.titles.insert((section.started, section.title)) {
                    writeln!(out, "{}", render_title(timeline, section, style))?;
                }
                writeln!(out, "{}", render_entry(timeline, entry, style))?;
            }
            // Ready, done or gone.
            let summary = section.summary();
            if section.outcome.after.is_some() && self.outcomes.insert((section.started, summary)) {
                writeln!(out, "{}", render_outcome(section, style))?;
            }
        }
        out.flush()
    }

    fn wait(&mut self, object: &str) {
        if !std::mem::replace(&mut self.waits, true) {
            eprintln!("no steps of {object} yet; waiting");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(started: u64, name: &'static str) -> Step {
        Step {
            started,
            took: 1,
            step: name.into(),
            object: "pods/a/b".into(),
            process: String::new(),
            fields: Default::default(),
        }
    }

    #[test]
    fn steps_do_not_steer_the_terminal() {
        let hostile = "\x1b[2J";
        let step = Step {
            step: hostile.to_owned().into(),
            object: hostile.to_owned(),
            process: hostile.to_owned(),
            fields: [("error".into(), hostile.to_owned())].into(),
            started: 0,
            took: 0,
        };
        let shown = serde_json::to_string(&printable(step)).unwrap();
        assert!(!shown.contains("\\u001b") && shown.matches("[2J").count() == 4, "{shown}");
    }

    #[test]
    fn each_step_is_printed_once_even_if_it_arrives_late() {
        let mut printer = StepPrinter::default();
        let mut print = |steps: &[Step]| {
            let mut out = Vec::new();
            let timeline = build_timeline(steps, "pods/a/b", Detail::Changes).unwrap();
            printer.print(&timeline, &mut out, Style::default()).unwrap();
            String::from_utf8(out).unwrap().lines().map(|line| line.trim_start().to_owned()).collect::<Vec<_>>()
        };
        let queued = step(10, "queued");
        let first = print(std::slice::from_ref(&queued));
        assert_eq!(first.len(), 2, "{first:?}");
        assert!(first[0].starts_with("pods/a/b, creation"), "{first:?}");
        let second = print(&[queued.clone(), step(30, "sandbox")]);
        assert_eq!(second.len(), 1, "{second:?}");
        let late = print(&[queued, step(20, "accepted"), step(30, "sandbox")]);
        assert_eq!(late.len(), 1, "{late:?}");
        assert!(late[0].contains("accepted by the kubelet"), "{late:?}");
    }
}
