//! Flags of the API server's auditing, with the names and defaults of kube-apiserver.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgAction, Args};
use knarr_apiserver::audit::{
    Audit, AuditWebhook, Backend, BatchSender, BatchSettings, Format, Limits, Log, LogSettings, Mode, Policy,
};
use knarr_apiserver::configuration_file::duration;
use knarr_apiserver::outbound::ConfiguredWebhook;
use knarr_apiserver::state::ApiServer;

/// How long the audit webhook may take.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);
const VERSION: &str = "audit.k8s.io/v1";

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Auditing")]
pub struct AuditArguments {
    /// Audit Policy file.
    #[arg(long)]
    pub audit_policy_file: Option<PathBuf>,
    #[command(flatten)]
    pub log: LogArguments,
    #[command(flatten)]
    pub webhook: WebhookArguments,
}

#[derive(Args, Clone, Debug)]
pub struct LogArguments {
    /// Audit log file; `-` for standard output.
    #[arg(long)]
    pub audit_log_path: Option<PathBuf>,
    /// Days to retain rotated audit logs; 0 for no limit.
    #[arg(long, default_value_t = 366)]
    pub audit_log_maxage: u64,
    /// Number of rotated audit logs to retain; 0 for no limit.
    #[arg(long, default_value_t = 100)]
    pub audit_log_maxbackup: usize,
    /// Size in megabytes at which an audit log is rotated; 0 for never.
    #[arg(long, default_value_t = 100)]
    pub audit_log_maxsize: u64,
    /// Compress rotated audit logs.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub audit_log_compress: bool,
    /// Format of the audit log: json or legacy.
    #[arg(long, default_value = "json")]
    pub audit_log_format: String,
    /// Version of the events in the audit log.
    #[arg(long, default_value = VERSION)]
    pub audit_log_version: String,
    /// Whether requests wait for the audit log: batch, blocking or blocking-strict.
    #[arg(long, default_value = "blocking")]
    pub audit_log_mode: String,
    /// Number of events that may wait for the audit log in batch mode; more are dropped.
    #[arg(long, default_value_t = BatchSettings::LOG.buffer_size)]
    pub audit_log_batch_buffer_size: usize,
    /// Largest number of events that are written at once in batch mode.
    #[arg(long, default_value_t = BatchSettings::LOG.max_batch_size)]
    pub audit_log_batch_max_size: usize,
    /// How long a batch that is not full waits.
    #[arg(long, default_value = "0s", value_parser = duration)]
    pub audit_log_batch_max_wait: Duration,
    /// Limit how many batches are written.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub audit_log_batch_throttle_enable: bool,
    /// Batches per second.
    #[arg(long, default_value_t = 0.0)]
    pub audit_log_batch_throttle_qps: f64,
    /// Batches at once, after a while without any.
    #[arg(long, default_value_t = 0)]
    pub audit_log_batch_throttle_burst: u32,
    /// Leave out the bodies of large events in the audit log.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub audit_log_truncate_enabled: bool,
    /// Largest batch in bytes.
    #[arg(long, default_value_t = 10_485_760)]
    pub audit_log_truncate_max_batch_size: usize,
    /// Largest event in bytes.
    #[arg(long, default_value_t = 102_400)]
    pub audit_log_truncate_max_event_size: usize,
}

#[derive(Args, Clone, Debug)]
pub struct WebhookArguments {
    /// Kubeconfig of a webhook that audit events are sent to.
    #[arg(long)]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// Whether requests wait for the audit webhook: batch, blocking or blocking-strict.
    #[arg(long, default_value = "batch")]
    pub audit_webhook_mode: String,
    /// Version of the events for the audit webhook.
    #[arg(long, default_value = VERSION)]
    pub audit_webhook_version: String,
    /// How long to wait before a failed batch is sent again.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub audit_webhook_initial_backoff: Duration,
    /// Number of events that may wait for the audit webhook; more are dropped.
    #[arg(long, default_value_t = BatchSettings::WEBHOOK.buffer_size)]
    pub audit_webhook_batch_buffer_size: usize,
    /// Largest number of events in a batch.
    #[arg(long, default_value_t = BatchSettings::WEBHOOK.max_batch_size)]
    pub audit_webhook_batch_max_size: usize,
    /// How long a batch that is not full waits.
    #[arg(long, default_value = "30s", value_parser = duration)]
    pub audit_webhook_batch_max_wait: Duration,
    /// Limit how many batches are sent.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    pub audit_webhook_batch_throttle_enable: bool,
    /// Batches per second.
    #[arg(long, default_value_t = 10.0)]
    pub audit_webhook_batch_throttle_qps: f64,
    /// Batches at once, after a while without any.
    #[arg(long, default_value_t = 15)]
    pub audit_webhook_batch_throttle_burst: u32,
    /// Leave out the bodies of large events, and split large batches.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub audit_webhook_truncate_enabled: bool,
    /// Largest batch in bytes.
    #[arg(long, default_value_t = 10_485_760)]
    pub audit_webhook_truncate_max_batch_size: usize,
    /// Largest event in bytes.
    #[arg(long, default_value_t = 102_400)]
    pub audit_webhook_truncate_max_event_size: usize,
}

/// Enables auditing, if configured. What is returned sends events in the background until the audit closes.
pub fn start(
    arguments: &AuditArguments,
    server: &ApiServer,
) -> anyhow::Result<Vec<impl Future<Output = ()> + Send + use<>>> {
    let backends: Vec<(Backend, Option<BatchSender>)> =
        log(&arguments.log)?.into_iter().chain(webhook(&arguments.webhook)?).collect();
    let Some(file) = arguments.audit_policy_file.as_ref().filter(|_| !backends.is_empty()) else {
        return Ok(Vec::new());
    };
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let policy = Policy::parse(&text).with_context(|| format!("loading audit policy file {}", file.display()))?;
    let (backends, senders): (Vec<_>, Vec<_>) = backends.into_iter().unzip();
    let audit = Arc::new(Audit::new(policy, backends));
    let senders = senders.into_iter().flatten().map(|sender| sender.run(audit.closing())).collect();
    // The server was just created: nothing was set before.
    let _ = server.telemetry.audit.set(audit);
    Ok(senders)
}

fn log(arguments: &LogArguments) -> anyhow::Result<Option<(Backend, Option<BatchSender>)>> {
    let Some(path) = &arguments.audit_log_path else { return Ok(None) };
    let batches = Batches {
        plugin: "log",
        mode: &arguments.audit_log_mode,
        version: &arguments.audit_log_version,
        settings: BatchSettings {
            buffer_size: arguments.audit_log_batch_buffer_size,
            max_batch_size: arguments.audit_log_batch_max_size,
            max_wait: arguments.audit_log_batch_max_wait,
            throttle: arguments
                .audit_log_batch_throttle_enable
                .then_some((arguments.audit_log_batch_throttle_qps, arguments.audit_log_batch_throttle_burst)),
            ..BatchSettings::LOG
        },
        limits: Limits {
            event: arguments.audit_log_truncate_max_event_size,
            batch: arguments.audit_log_truncate_max_batch_size,
        },
    };
    let mode = batches.check()?;
    let Some(format) = Format::parse(&arguments.audit_log_format) else {
        let format = &arguments.audit_log_format;
        bail!("invalid audit log format {format}, allowed formats are {:?}", Format::names());
    };
    let settings = LogSettings {
        path: path.clone(),
        days: arguments.audit_log_maxage,
        files: arguments.audit_log_maxbackup,
        megabytes: arguments.audit_log_maxsize,
        compress: arguments.audit_log_compress,
        format,
    };
    let log = Log::open(settings).with_context(|| format!("cannot open {}", path.display()))?;
    let limits = arguments.audit_log_truncate_enabled.then_some(batches.limits);
    Ok(Some(Backend::new(Arc::new(log), mode, batches.settings, limits)))
}

fn webhook(arguments: &WebhookArguments) -> anyhow::Result<Option<(Backend, Option<BatchSender>)>> {
    let Some(path) = &arguments.audit_webhook_config_file else { return Ok(None) };
    let batches = Batches {
        plugin: "webhook",
        mode: &arguments.audit_webhook_mode,
        version: &arguments.audit_webhook_version,
        settings: BatchSettings {
            buffer_size: arguments.audit_webhook_batch_buffer_size,
            max_batch_size: arguments.audit_webhook_batch_max_size,
            max_wait: arguments.audit_webhook_batch_max_wait,
            throttle: arguments
                .audit_webhook_batch_throttle_enable
                .then_some((arguments.audit_webhook_batch_throttle_qps, arguments.audit_webhook_batch_throttle_burst)),
            ..BatchSettings::WEBHOOK
        },
        limits: Limits {
            event: arguments.audit_webhook_truncate_max_event_size,
            batch: arguments.audit_webhook_truncate_max_batch_size,
        },
    };
    let mode = batches.check()?;
    let webhook = ConfiguredWebhook::read(path, WEBHOOK_TIMEOUT)?;
    let webhook = AuditWebhook::new(webhook, arguments.audit_webhook_initial_backoff);
    let limits = arguments.audit_webhook_truncate_enabled.then_some(batches.limits);
    Ok(Some(Backend::new(Arc::new(webhook), mode, batches.settings, limits)))
}

/// The settings that log and webhook have in common, to be checked.
struct Batches<'a> {
    plugin: &'static str,
    mode: &'a str,
    version: &'a str,
    settings: BatchSettings,
    limits: Limits,
}

impl Batches<'_> {
    /// The mode, or Kubernetes' error message.
    fn check(&self) -> anyhow::Result<Mode> {
        let Batches { plugin, mode: name, version, settings, limits } = self;
        let Some(mode) = Mode::parse(name) else {
            bail!("invalid audit {plugin} mode {name}, allowed modes are {:?}", Mode::names());
        };
        if mode == Mode::Batch {
            let (buffer, batch) = (settings.buffer_size, settings.max_batch_size);
            if buffer == 0 {
                bail!("invalid audit batch {plugin} buffer size {buffer}, must be a positive number");
            }
            if batch == 0 {
                bail!("invalid audit batch {plugin} max batch size {batch}, must be a positive number");
            }
            match settings.throttle {
                Some((rate, _)) if rate.is_nan() || rate <= 0.0 => {
                    bail!("invalid audit batch {plugin} throttle QPS {rate}, must be a positive number");
                }
                Some((_, 0)) => bail!("invalid audit batch {plugin} throttle burst 0, must be a positive number"),
                _ => {}
            }
        }
        let Limits { event, batch } = *limits;
        if event == 0 {
            bail!("invalid audit truncate {plugin} max event size {event}, must be a positive number");
        }
        if batch < event {
            bail!(
                "invalid audit truncate {plugin} max batch size {batch}, must be greater than max event size ({event})"
            );
        }
        if *version != VERSION {
            bail!("invalid group version, allowed versions are [{VERSION:?}]");
        }
        Ok(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_settings_are_refused_in_the_words_of_kubernetes() {
        let good = || BatchSettings { throttle: Some((1.0, 1)), ..BatchSettings::LOG };
        let limits = Limits { event: 10, batch: 20 };
        for (mode, settings, limits, refusal) in [
            ("batch", good(), limits, ""),
            ("blocking-strict", BatchSettings { buffer_size: 0, ..good() }, limits, ""),
            (
                "fast",
                good(),
                limits,
                "invalid audit log mode fast, allowed modes are \"batch,blocking,blocking-strict\"",
            ),
            (
                "batch",
                BatchSettings { buffer_size: 0, ..good() },
                limits,
                "invalid audit batch log buffer size 0, must be a positive number",
            ),
            (
                "batch",
                BatchSettings { max_batch_size: 0, ..good() },
                limits,
                "invalid audit batch log max batch size 0, must be a positive number",
            ),
            (
                "batch",
                BatchSettings { throttle: Some((0.0, 1)), ..good() },
                limits,
                "invalid audit batch log throttle QPS 0, must be a positive number",
            ),
            (
                "batch",
                BatchSettings { throttle: Some((1.0, 0)), ..good() },
                limits,
                "invalid audit batch log throttle burst 0, must be a positive number",
            ),
            (
                "blocking",
                good(),
                Limits { event: 0, batch: 1 },
                "invalid audit truncate log max event size 0, must be a positive number",
            ),
            (
                "blocking",
                good(),
                Limits { event: 2, batch: 1 },
                "invalid audit truncate log max batch size 1, must be greater than max event size (2)",
            ),
        ] {
            let batches = Batches { plugin: "log", mode, version: VERSION, settings, limits };
            let found = batches.check().err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(found, refusal);
        }
    }
}
