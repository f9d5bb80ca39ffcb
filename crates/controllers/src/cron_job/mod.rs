//! Creates jobs on a schedule.
//!
//! [`schedule`] parses cron schedules, [`plan`] finds what is due. This module watches cron jobs and their jobs.

mod plan;
mod schedule;

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, CronJobStatus, Job};
use k8s_openapi::jiff::Timestamp;
use k8s_openapi::jiff::tz::TimeZone;
use knarr_client::events::reference;
use knarr_client::{EventRecorder, Informer, WorkQueue, owner, time};
use kube::Api;
use kube::api::{PostParams, PropagationPolicy};

use crate::Context;
use crate::common::key::{name, namespace, uid};
use crate::common::pods::BY_CONTROLLER;
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::{delete, replace_status};
use crate::common::written_versions::WrittenVersions;
use crate::common::{Key, journey};
use crate::error::{Result, ignore_not_found, is_already_there, message, namespace_terminating};
use crate::job::{COMPLETE, is_finished, true_condition};
use crate::metrics::CRON_JOB_SKEW;

use schedule::Schedule;

pub async fn run(context: Context) {
    let crons = context.informers.of::<CronJob>();
    let jobs = context.informers.of::<Job>();
    jobs.add_index(BY_CONTROLLER, |job| owner::controller_uid(&job.metadata).map(str::to_owned).into_iter().collect());
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let on_cron = queue.clone();
    crons.on_change(move |change| on_cron.add(Key::of(&**change.latest())));
    let on_job = queue.clone();
    jobs.on_change(move |change| {
        let job = change.latest();
        if let Some(reference) = owner::controller_of(&job.metadata).filter(|owner| owner.kind == "CronJob") {
            on_job.add(Key::new(namespace(&**job), reference.name.clone()));
        }
    });
    crons.synced().await;
    jobs.synced().await;
    let workers = context.settings.concurrent_syncs.of("concurrent-cron-job-syncs");
    let recorder = context.recorder("cronjob-controller");
    let controller = Arc::new(Controller {
        context,
        crons,
        jobs,
        queue: queue.clone(),
        written: WrittenVersions::default(),
        recorder,
    });
    run_controller(&controller, &queue, workers).await;
}

struct Controller {
    context: Context,
    crons: Arc<Informer<CronJob>>,
    jobs: Arc<Informer<Job>>,
    queue: Arc<WorkQueue<Key>>,
    written: WrittenVersions,
    recorder: EventRecorder,
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let _step = journey::sync_span("cronjob", "cronjobs", &key);
        let Some(cron) = self.crons.get(&key.namespace, &key.name) else {
            self.written.forget(&key);
            return Ok(());
        };
        if self.written.is_newer_than(&key, &cron.metadata) {
            return Ok(());
        }
        let spec = &cron.spec;
        let jobs = self.jobs.by_index(BY_CONTROLLER, uid(&*cron));
        let mut status = cron.status.clone().unwrap_or_default();
        // A job beyond the history limit gets no completion event: it is deleted by then.
        self.clean_up(&cron, spec, &jobs, &mut status).await;
        self.note_jobs(&cron, &jobs, &mut status).await?;
        let outcome = self.start_due(&cron, spec, &mut status).await;
        status.active = status.active.filter(|active| !active.is_empty());
        if cron.status.clone().unwrap_or_default() != status {
            let changed = CronJob { status: Some(status), ..(*cron).clone() };
            if let Some(written) = ignore_not_found(replace_status(&self.context.client, &changed).await)? {
                self.written.note(&key, &written.metadata);
            }
        }
        if let Some(after) = outcome? {
            self.queue.add_after(key, after);
        }
        Ok(())
    }
}

impl Controller {
    /// Removes finished and deleted jobs from the list of active ones.
    async fn note_jobs(&self, cron: &CronJob, jobs: &[Arc<Job>], status: &mut CronJobStatus) -> Result<()> {
        for job in jobs {
            let is_listed = |status: &CronJobStatus| {
                status.active.iter().flatten().any(|active| active.uid.as_deref() == Some(uid(&**job)))
            };
            let listed = is_listed(status);
            if !is_finished(job) {
                if !listed {
                    // The cached list may not contain this job yet.
                    let api: Api<CronJob> = Api::namespaced(self.context.client.clone(), namespace(cron));
                    let fresh = api.get_opt(name(cron)).await?.and_then(|fresh| fresh.status).unwrap_or_default();
                    if is_listed(&fresh) {
                        *status = fresh;
                    } else {
                        let text = format!("Saw a job that the controller did not create or forgot: {}", name(&**job));
                        self.recorder.warning(cron, "UnexpectedJob", text);
                    }
                }
                continue;
            }
            let completed = true_condition(job, COMPLETE).is_some();
            if listed {
                remove(status, uid(&**job));
                let condition = if completed { "Complete" } else { "Failed" };
                let text = format!("Saw completed job: {}, condition: {condition}", name(&**job));
                self.recorder.normal(cron, "SawCompletedJob", text);
            }
            let finished_at = job.status.as_ref().and_then(|status| status.completion_time.clone());
            if completed && finished_at > status.last_successful_time {
                status.last_successful_time = finished_at;
            }
        }
        let vanished: Vec<_> = status
            .active
            .iter()
            .flatten()
            .filter(|active| !jobs.iter().any(|job| active.uid.as_deref() == Some(uid(&**job))))
            .cloned()
            .collect();
        let api: Api<Job> = Api::namespaced(self.context.client.clone(), namespace(cron));
        for active in vanished {
            let job = active.name.as_deref().unwrap_or("");
            if api.get_opt(job).await?.is_none() {
                self.recorder.normal(cron, "MissingJob", format!("Active job went missing: {job}"));
                remove(status, active.uid.as_deref().unwrap_or(""));
            }
        }
        Ok(())
    }

    /// Creates the job that is due, if any; returns when to sync again.
    async fn start_due(
        &self,
        cron: &CronJob,
        spec: &CronJobSpec,
        status: &mut CronJobStatus,
    ) -> Result<Option<Duration>> {
        if cron.metadata.deletion_timestamp.is_some() {
            return Ok(None);
        }
        let now = self.context.clock.now();
        let Some((schedule, zone)) = self.schedule(cron, spec, now) else { return Ok(None) };
        let due = plan::due(cron, spec, &schedule, &zone, now);
        let Some(at) = due.at else { return Ok(due.recheck) };
        if due.many_missed {
            let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
            self.recorder.warning(cron, "TooManyMissedTimes", text);
        }
        if plan::is_too_late(spec, at, now) {
            let stamp = at.to_zoned(TimeZone::UTC).strftime("%a, %d %b %Y %H:%M:%S %z").to_string();
            self.recorder.warning(cron, "MissSchedule", format!("Missed scheduled time to start a job: {stamp}"));
            return Ok(due.recheck);
        }
        let job_name = plan::job_name(cron, at);
        let active = status.active.iter().flatten();
        let processed = status.last_schedule_time.as_ref().is_some_and(|last| last.0 == at);
        if processed || active.into_iter().any(|active| active.name.as_deref() == Some(&job_name)) {
            return Ok(due.recheck);
        }
        if self.may_start(cron, spec, status).await? {
            self.create(cron, plan::new_job(cron, spec, &zone, at), at, status).await?;
            status.last_schedule_time = Some(time::truncated(at));
        }
        Ok(due.recheck)
    }

    /// The schedule and its time zone; none if it is suspended, or, with an event, if it is invalid.
    fn schedule(&self, cron: &CronJob, spec: &CronJobSpec, now: Timestamp) -> Option<(Schedule, TimeZone)> {
        let zone = match spec.time_zone.as_deref() {
            None => TimeZone::system(),
            Some(named) => match TimeZone::get(named) {
                Ok(zone) => zone,
                Err(_) => {
                    let text = format!("invalid timeZone: \"{named}\": unknown time zone {named}");
                    self.recorder.warning(cron, "UnknownTimeZone", text);
                    return None;
                }
            },
        };
        if spec.suspend == Some(true) {
            return None;
        }
        let schedule = match Schedule::parse(&spec.schedule) {
            Ok(schedule) => schedule,
            Err(error) => {
                let text = format!("unparseable schedule: \"{}\" : {error}", spec.schedule);
                self.recorder.warning(cron, "UnparseableSchedule", text);
                return None;
            }
        };
        if schedule.next(now, &zone).is_none() {
            let why = "time difference between two schedules is less than 1 second";
            let text = format!("invalid schedule: {} : {why}", spec.schedule);
            self.recorder.warning(cron, "InvalidSchedule", text);
            return None;
        }
        Some((schedule, zone))
    }

    /// Whether a job may start besides the active ones, which are deleted if it replaces them.
    async fn may_start(&self, cron: &CronJob, spec: &CronJobSpec, status: &mut CronJobStatus) -> Result<bool> {
        let active = status.active.clone().unwrap_or_default();
        match spec.concurrency_policy.as_deref() {
            Some("Forbid") if !active.is_empty() => {
                let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
                self.recorder.normal(cron, "JobAlreadyActive", text);
                return Ok(false);
            }
            Some("Replace") => {
                let api: Api<Job> = Api::namespaced(self.context.client.clone(), namespace(cron));
                for running in active {
                    if let Some(job) = api.get_opt(running.name.as_deref().unwrap_or("")).await? {
                        self.delete_job(cron, &job, status).await?;
                    }
                }
            }
            _ => {}
        }
        Ok(true)
    }

    async fn create(&self, cron: &CronJob, job: Job, due: Timestamp, status: &mut CronJobStatus) -> Result<()> {
        let api: Api<Job> = Api::namespaced(self.context.client.clone(), namespace(cron));
        let created = match api.create(&PostParams::default(), &job).await {
            Ok(created) => {
                self.recorder.normal(cron, "SuccessfulCreate", format!("Created job {}", name(&created)));
                if let Some(at) = &created.metadata.creation_timestamp {
                    CRON_JOB_SKEW.observe(&[], at.0.duration_since(due).as_secs_f64());
                }
                created
            }
            Err(error) if is_already_there(&error) => match api.get_opt(name(&job)).await? {
                Some(there) if owner::is_controlled_by(&there.metadata, &cron.metadata) => there,
                _ => return Ok(()),
            },
            Err(error) => {
                if !namespace_terminating(&error) {
                    self.recorder.warning(cron, "FailedCreate", format!("Error creating job: {}", message(&error)));
                }
                return Err(error.into());
            }
        };
        if !is_finished(&created) {
            status.active.get_or_insert_default().push(reference(&created));
        }
        Ok(())
    }

    /// Deletes finished jobs beyond the history limits, the oldest first. One that cannot be deleted keeps no job from being
    /// started; it is deleted at a later sync.
    async fn clean_up(&self, cron: &CronJob, spec: &CronJobSpec, jobs: &[Arc<Job>], status: &mut CronJobStatus) {
        let finished = jobs.iter().filter(|job| is_finished(job));
        let (succeeded, failed): (Vec<_>, Vec<_>) = finished.partition(|job| true_condition(job, COMPLETE).is_some());
        let limits = [(succeeded, spec.successful_jobs_history_limit), (failed, spec.failed_jobs_history_limit)];
        for (mut jobs, limit) in limits {
            let Some(limit) = limit.and_then(|limit| usize::try_from(limit).ok()) else { continue };
            let surplus = jobs.len().saturating_sub(limit);
            jobs.sort_by_key(|job| {
                let started = job.status.as_ref().and_then(|status| status.start_time.clone());
                (started.is_none(), started, job.metadata.name.clone())
            });
            for job in jobs.into_iter().take(surplus).filter(|job| job.metadata.deletion_timestamp.is_none()) {
                if let Err(error) = self.delete_job(cron, job, status).await {
                    tracing::debug!(cron_job = %Key::of(cron), job = name(&**job), %error, "cannot delete an old job");
                }
            }
        }
    }

    async fn delete_job(&self, cron: &CronJob, job: &Job, status: &mut CronJobStatus) -> Result<()> {
        if let Err(error) = delete(&self.context.client, job, Some(PropagationPolicy::Background)).await {
            self.recorder.warning(cron, "FailedDelete", format!("Deleted job: {error}"));
            return Err(error);
        }
        remove(status, uid(job));
        self.recorder.normal(cron, "SuccessfulDelete", format!("Deleted job {}", name(job)));
        Ok(())
    }
}

fn remove(status: &mut CronJobStatus, uid: &str) {
    if let Some(active) = &mut status.active {
        active.retain(|reference| reference.uid.as_deref() != Some(uid));
    }
}
