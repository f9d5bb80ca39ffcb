//! Shared by all commands: the tokio runtime, logging and the terminal.

use std::future::Future;
use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};

use anyhow::Context as _;
use knarr_apiserver::kinds::OpenDescriptions;
use knarr_descriptions::Descriptions;
use knarr_journey::Recorder;
use knarr_supervisor::Supervisor;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{FilterExt as _, filter_fn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

pub use crate::paths::{CONFIGURATION, DATA, kubeconfig};

/// The default log filter. Failed requests are logged by their callers.
const QUIET: &str = "warn,knarr::=info,kube_runtime=error,kube_client=off,rustls=error";

/// What is logged without `KNARR_LOG`, if not the default.
static VERBOSITY: OnceLock<&'static str> = OnceLock::new();

/// Sets what is logged by the level of Kubernetes' components.
pub fn set_verbosity(level: u32) {
    let filter = match level {
        0..4 => return,
        4..6 => "warn,knarr=debug,kube_runtime=error,kube_client=off,rustls=error",
        _ => "debug,knarr=trace,rustls=error",
    };
    // Set once per process.
    let _ = VERBOSITY.set(filter);
}

/// Starts logging to standard error, filtered by `KNARR_LOG`, and recording journey events under the name of this node.
pub fn start_logging(node: Option<&str>, is_daemon: bool) {
    // A short command reports itself that it found no server.
    let quiet = if is_daemon { QUIET.to_owned() } else { format!("{QUIET},knarr::server=off") };
    let quiet = VERBOSITY.get().map_or(quiet, |filter| (*filter).to_owned());
    let filter = EnvFilter::try_from_env("KNARR_LOG").unwrap_or_else(|_| EnvFilter::new(quiet));
    let for_log = filter.and(filter_fn(|metadata| !Recorder::is_journey_event(metadata)));
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // The journal adds timestamps.
    let log = match std::env::var_os("JOURNAL_STREAM") {
        Some(_) => log.with_ansi(false).event_format(JournalLine).with_filter(for_log).boxed(),
        None => log.with_ansi(std::io::stderr().is_terminal()).with_filter(for_log).boxed(),
    };
    let node = node_name(node).unwrap_or_default();
    let recorder = Recorder::new(crate::journal::own(), node).with_filter(filter_fn(Recorder::is_journey_event));
    // A second call finds logging initialized.
    let _ = tracing_subscriber::registry().with(log).with(recorder).try_init();
    if is_daemon {
        knarr_supervisor::install_panic_hook();
    }
}

/// The journal's line format: priority prefix, no timestamp.
struct JournalLine;

impl<S, N> FormatEvent<S, N> for JournalLine
where
    S: tracing::Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut line: Writer<'_>,
        event: &tracing::Event<'_>,
    ) -> std::fmt::Result {
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => 3,
            tracing::Level::WARN => 4,
            tracing::Level::INFO => 6,
            _ => 7,
        };
        write!(line, "<{level}>{}: ", event.metadata().target())?;
        context.field_format().format_fields(line.by_ref(), event)?;
        writeln!(line)
    }
}

/// Maximum number of threads for blocking operations. They exist only while they are used, mostly one or two. A volume whose server
/// hangs holds one for as long, and so does its worker's replacement: without a free one, the whole process would stop.
const BLOCKING_THREADS: usize = 512;

/// Runs a command to completion on a runtime with one thread per CPU.
pub fn block_on(command: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        knarr_supervisor::spawn_restarting("footprint", crate::footprint::keep_small);
        command.await
    })
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .max_blocking_threads(BLOCKING_THREADS)
        .on_thread_park(crate::allocator::collect_idle)
        .enable_all()
        .build()
}

/// The node name: the configured one, or the host name.
pub fn node_name(given: Option<&str>) -> anyhow::Result<String> {
    if let Some(name) = given {
        return Ok(name.to_owned());
    }
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").context("cannot read the host name")?;
    Ok(name.trim().to_lowercase())
}

/// Ignores a closed standard output.
pub fn unless_closed(written: std::io::Result<()>) -> anyhow::Result<()> {
    match written {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot write to standard output"),
    }
}

/// The width of the terminal, if standard output is one.
pub fn terminal_width() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call writes only into `size`, which outlives it.
    let result = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) };
    (result == 0 && size.ws_col > 0).then_some(size.ws_col.into())
}

/// Runs the main work of a standalone component until it ends or a component of it fails the process.
pub async fn supervised(
    supervisor: &Supervisor,
    name: &str,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    tokio::select! {
        ended = supervisor.run(name, work) => ended?,
        failure = supervisor.registry().failed() => Err(failure.into()),
    }
}

/// Descriptions of the fields of built-in kinds, unpacked for each OpenAPI document.
pub fn descriptions() -> OpenDescriptions {
    Arc::new(|| match Descriptions::inflate() {
        Ok(descriptions) => {
            Box::new(move |type_name: &str, field: &str| descriptions.get(type_name, field).map(str::to_owned))
        }
        Err(error) => {
            tracing::error!(%error, "cannot unpack the descriptions");
            Box::new(|_, _| None)
        }
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// Each of a hundred pods may wait for the server of a volume.
    #[test]
    fn hung_volumes_do_not_stop_the_process() {
        let runtime = super::runtime().unwrap();
        let mut releases = Vec::new();
        for _ in 0..100 {
            let (release, hung) = channel::<()>();
            let (started, has_started) = channel();
            runtime.spawn(async move {
                tokio::task::block_in_place(|| {
                    started.send(()).unwrap();
                    hung.recv().ok()
                })
            });
            has_started.recv_timeout(Duration::from_secs(60)).expect("other tasks go on");
            releases.push(release);
        }
    }
}
