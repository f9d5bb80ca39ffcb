//! The debug pages that show priority levels, queues and requests.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use knarr_api::go_duration;

use super::Fairness;
use super::level::{Description, Level};
use super::queue_set::Request;

/// Seconds before the year 1970 of Go's zero time, which stands for "not yet".
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

impl Fairness {
    /// A page below `/debug/api_priority_and_fairness/`; `None` if there is no such page.
    pub fn dump(&self, page: &str, with_details: bool, now: Timestamp) -> Option<String> {
        if !self.is_enabled() {
            return None;
        }
        let mut levels = self.levels();
        levels.sort_by(|a, b| a.name.cmp(&b.name));
        match page {
            "dump_priority_levels" => Some(table(priority_levels(&levels))),
            "dump_queues" => Some(table(queues(&levels))),
            "dump_requests" => Some(table(requests(&levels, with_details, now))),
            _ => None,
        }
    }
}

fn priority_levels(levels: &[Arc<Level>]) -> Vec<Vec<String>> {
    let mut rows = vec![cells([
        "PriorityLevelName",
        "ActiveQueues",
        "IsIdle",
        "IsQuiescing",
        "WaitingRequests",
        "ExecutingRequests",
        "DispatchedRequests",
        "RejectedRequests",
        "TimedoutRequests",
        "CancelledRequests",
    ])];
    rows.extend(levels.iter().map(|level| {
        level.read(|state| {
            let counts = state.set.counts();
            let active = state.set.queues().iter().filter(|queue| !queue.waiting.is_empty()).count();
            vec![
                level.name.to_string(),
                active.to_string(),
                state.set.is_idle().to_string(),
                state.quiescing.to_string(),
                state.set.waiting().to_string(),
                state.set.executing().to_string(),
                counts.dispatched.to_string(),
                counts.rejected.to_string(),
                "0".to_owned(),
                counts.cancelled.to_string(),
            ]
        })
    }));
    rows
}

fn queues(levels: &[Arc<Level>]) -> Vec<Vec<String>> {
    let mut rows = vec![cells([
        "PriorityLevelName",
        "Index",
        "PendingRequests",
        "ExecutingRequests",
        "SeatsInUse",
        "NextDispatchR",
        "InitialSeatsSum",
        "MaxSeatsSum",
        "TotalWorkSum",
    ])];
    for level in levels {
        level.read(|state| {
            for (at, queue) in state.set.queues().iter().enumerate() {
                rows.push(vec![
                    level.name.to_string(),
                    at.to_string(),
                    queue.waiting.len().to_string(),
                    queue.executing.to_string(),
                    queue.seats_in_use.to_string(),
                    format!("{:.8}ss", queue.next_dispatch()),
                    queue.initial_seats_waiting().to_string(),
                    queue.seats_waiting().to_string(),
                    format!("{:.8}ss", queue.work_waiting()),
                ]);
            }
        });
    }
    rows
}

fn requests(levels: &[Arc<Level>], with_details: bool, now: Timestamp) -> Vec<Vec<String>> {
    let mut head = cells([
        "PriorityLevelName",
        "FlowSchemaName",
        "QueueIndex",
        "RequestIndexInQueue",
        "FlowDistingsher",
        "ArriveTime",
        "InitialSeats",
        "FinalSeats",
        "AdditionalLatency",
        "StartTime",
    ]);
    if with_details {
        head.extend(cells([
            "UserName",
            "Verb",
            "APIPath",
            "Namespace",
            "Name",
            "APIVersion",
            "Resource",
            "SubResource",
        ]));
    }
    let mut rows = vec![head];
    for level in levels {
        level.read(|state| {
            for queue in state.set.queues() {
                for (at, id) in queue.waiting.iter().enumerate() {
                    rows.extend(state.set.request(*id).map(|own| request(level, own, Some(at), with_details, now)));
                }
            }
            rows.extend(state.set.all_executing().map(|own| request(level, own, None, with_details, now)));
        });
    }
    rows
}

fn request(
    level: &Level,
    request: &Request<Description>,
    at: Option<usize>,
    with_details: bool,
    now: Timestamp,
) -> Vec<String> {
    let index = |index: Option<usize>| index.map_or("-1".to_owned(), |index| index.to_string());
    let wall = |time: Duration| now.checked_sub(level.ago(time)).unwrap_or(now).to_string();
    let Description { schema, distinguisher, user, target } = &request.description;
    let mut row = vec![
        level.name.to_string(),
        schema.to_string(),
        index(request.queue),
        index(at),
        distinguisher.to_string(),
        wall(request.arrived),
        request.estimate.initial_seats.to_string(),
        request.estimate.final_seats.to_string(),
        go_duration::format(request.estimate.additional_latency.as_nanos() as i64),
        request.started.map_or(ZERO_TIME.to_owned(), wall),
    ];
    if with_details {
        let version = match target.group.as_str() {
            "" => target.version.clone(),
            group => format!("{group}/{}", target.version),
        };
        row.extend([
            user.name.clone(),
            target.verb.clone(),
            target.path.clone(),
            target.namespace.clone(),
            target.name.clone(),
            version,
            target.resource.clone(),
            target.subresource.clone(),
        ]);
    }
    row
}

fn cells<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).into()
}

/// Aligns all columns but the last.
fn table(rows: Vec<Vec<String>>) -> String {
    const MIN_WIDTH: usize = 8;
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| {
        let longest = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count() + 2).max();
        longest.unwrap_or_default().max(MIN_WIDTH)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in &rows {
        for (at, cell) in row.iter().enumerate() {
            if at + 1 == row.len() {
                let _ = writeln!(out, "{cell}");
            } else {
                let _ = write!(out, "{:width$}", format!("{cell},"), width = widths[at]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let rows = vec![cells(["Name", "Index", "Last"]), cells(["workload-high", "1", "x"])];
        assert_eq!(table(rows), "Name,          Index,  Last\nworkload-high, 1,      x\n");
    }
}
