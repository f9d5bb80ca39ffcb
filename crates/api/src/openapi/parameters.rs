//! The parameters of requests, described once for both versions of OpenAPI.

use std::borrow::Cow;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Parameter {
    pub name: &'static str,
    pub place: Place,
    /// JSON's name of its type.
    pub kind: &'static str,
    pub description: Cow<'static, str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Query,
    Path,
}

impl Place {
    /// Its name in OpenAPI.
    pub fn name(self) -> &'static str {
        match self {
            Place::Query => "query",
            Place::Path => "path",
        }
    }
}

impl Parameter {
    /// Whether OpenAPI v2 states it once for all operations. Older clients look for `dryRun` and `fieldValidation` in the
    /// operations themselves, and what names a kind is different in each.
    pub fn is_shared(&self) -> bool {
        !matches!(self.name, "dryRun" | "fieldValidation" | "name")
    }
}

pub(super) fn name_of(kind: &str) -> Parameter {
    Parameter { name: "name", place: Place::Path, kind: "string", description: format!("name of the {kind}").into() }
}

pub(super) static NAMESPACE: Parameter =
    path("namespace", "the namespace that holds the object, and by which access to it is granted");
pub(super) static PROXY_PATH_SEGMENT: Parameter = path("path", "path below the resource that is asked for");
pub(super) static PRETTY: Parameter = query("pretty", "string", "print the response with indentation if 'true'");
pub(super) static RESOURCE_VERSION: Parameter = query(
    "resourceVersion",
    "string",
    "the resource version that the response must be from, or not older than; without it the newest state is read",
);

/// The parameters of lists and watches.
pub(super) static LIST: [Parameter; 11] = [
    query("allowWatchBookmarks", "boolean", "whether the watch may send BOOKMARK events, which report progress only"),
    CONTINUE,
    FIELD_SELECTOR,
    LABEL_SELECTOR,
    LIMIT,
    RESOURCE_VERSION_OF_LIST,
    RESOURCE_VERSION_MATCH,
    SEND_INITIAL_EVENTS,
    SHARD_SELECTOR,
    TIMEOUT_SECONDS,
    query("watch", "boolean", "stream changes of the objects as add, update and remove events instead of listing them"),
];

pub(super) static DELETE: [Parameter; 5] =
    [DRY_RUN, GRACE_PERIOD_SECONDS, IGNORE_STORE_READ_ERROR, ORPHAN_DEPENDENTS, PROPAGATION_POLICY];

pub(super) static DELETE_COLLECTION: [Parameter; 14] = [
    CONTINUE,
    DRY_RUN,
    FIELD_SELECTOR,
    GRACE_PERIOD_SECONDS,
    IGNORE_STORE_READ_ERROR,
    LABEL_SELECTOR,
    LIMIT,
    ORPHAN_DEPENDENTS,
    PROPAGATION_POLICY,
    RESOURCE_VERSION_OF_LIST,
    RESOURCE_VERSION_MATCH,
    SEND_INITIAL_EVENTS,
    SHARD_SELECTOR,
    TIMEOUT_SECONDS,
];

/// The parameters of create and replace.
pub(super) static WRITE: [Parameter; 3] = [
    DRY_RUN,
    query(
        "fieldManager",
        "string",
        "the name under which the changed fields are owned; 128 printable characters at most",
    ),
    FIELD_VALIDATION,
];

pub(super) static PATCH: [Parameter; 4] = [
    DRY_RUN,
    query(
        "fieldManager",
        "string",
        "the name under which the changed fields are owned; apply requests must give one, others may",
    ),
    FIELD_VALIDATION,
    query("force", "boolean", "let an apply request take fields that others own"),
];

pub(super) static ATTACH: [Parameter; 5] = [
    query("container", "string", "the container to attach to; may be left out where the pod has only one"),
    query("stderr", "boolean", "whether to receive the container's standard error"),
    query("stdin", "boolean", "whether to send to the container's standard input"),
    query("stdout", "boolean", "whether to receive the container's standard output"),
    query("tty", "boolean", "whether the container was given a terminal that is to be attached"),
];

pub(super) static EXEC: [Parameter; 6] = [
    query("command", "string", "the command to run and its arguments, one each; it is not run in a shell"),
    query("container", "string", "the container to run the command in; may be left out where the pod has only one"),
    query("stderr", "boolean", "whether to receive the command's standard error"),
    query("stdin", "boolean", "whether to send to the command's standard input"),
    query("stdout", "boolean", "whether to receive the command's standard output"),
    query("tty", "boolean", "whether to give the command a terminal"),
];

pub(super) static LOG: [Parameter; 9] = [
    query("container", "string", "the container whose log to read; may be left out where the pod has only one"),
    query("follow", "boolean", "whether to keep sending the log as it grows"),
    query(
        "insecureSkipTLSVerifyBackend",
        "boolean",
        "whether to read from a node whose certificate cannot be verified; the response may then come from anyone",
    ),
    query("limitBytes", "integer", "how many bytes to send at most; the last line may be cut"),
    query("previous", "boolean", "whether to read the log of the container's run before this one"),
    query("sinceSeconds", "integer", "how many seconds back to start"),
    query("stream", "string", "which of the container's streams to send: All, Stdout or Stderr"),
    query("tailLines", "integer", "how many lines before the end to start"),
    query("timestamps", "boolean", "whether to prefix each line with its time"),
];

pub(super) static PORT_FORWARD: [Parameter; 1] =
    [query("ports", "integer", "the ports to forward; needed when a WebSocket is used")];

pub(super) static NODE_PROXY: [Parameter; 1] = [query("path", "string", "the path to ask the node for")];
pub(super) static POD_PROXY: [Parameter; 1] = [query("path", "string", "the path to ask the pod for")];
pub(super) static SERVICE_PROXY: [Parameter; 1] =
    [query("path", "string", "the path to ask the service for, with any query it is to receive")];

const CONTINUE: Parameter = query(
    "continue",
    "string",
    "the token of the previous response, which said that there is more; it expires after a while",
);
const FIELD_SELECTOR: Parameter =
    query("fieldSelector", "string", "which objects to return, by their fields; all by default");
const LABEL_SELECTOR: Parameter =
    query("labelSelector", "string", "which objects to return, by their labels; all by default");
const LIMIT: Parameter =
    query("limit", "integer", "how many objects to return at most; a continue token stands in for the rest");
const RESOURCE_VERSION_OF_LIST: Parameter = query(
    "resourceVersion",
    "string",
    "the resource version that the response must be from, or not older than; without it the newest state is read",
);
const RESOURCE_VERSION_MATCH: Parameter =
    query("resourceVersionMatch", "string", "what resourceVersion asks of a list: Exact or NotOlderThan");
const SEND_INITIAL_EVENTS: Parameter = query(
    "sendInitialEvents",
    "boolean",
    "whether a watch starts with the objects there are, followed by a bookmark that says they are complete",
);
const SHARD_SELECTOR: Parameter =
    query("shardSelector", "string", "which objects to return, by a range of a hash of one of their fields");
const TIMEOUT_SECONDS: Parameter =
    query("timeoutSeconds", "integer", "how long the list or watch may last, however active it is");
const DRY_RUN: Parameter =
    query("dryRun", "string", "go through all steps of the request but keep nothing; the one valid value is All");
const FIELD_VALIDATION: Parameter = query(
    "fieldValidation",
    "string",
    "what to do about unknown and duplicate fields: Ignore drops them, Warn drops them with a warning (the default), \
     Strict refuses the request and names them",
);
const GRACE_PERIOD_SECONDS: Parameter = query(
    "gracePeriodSeconds",
    "integer",
    "how many seconds the object is given to end; zero deletes at once, without it the kind's own default holds",
);
const IGNORE_STORE_READ_ERROR: Parameter = query(
    "ignoreStoreReadErrorWithClusterBreakingPotential",
    "boolean",
    "delete an object that can no longer be read from the store, without finalizers and preconditions; this can break \
     what depends on it",
);
const ORPHAN_DEPENDENTS: Parameter =
    query("orphanDependents", "boolean", "deprecated in favour of propagationPolicy: whether dependents are kept");
const PROPAGATION_POLICY: Parameter = query(
    "propagationPolicy",
    "string",
    "what becomes of dependents: Orphan leaves them, Background deletes them afterwards, Foreground before the object",
);

const fn query(name: &'static str, kind: &'static str, description: &'static str) -> Parameter {
    Parameter { name, place: Place::Query, kind, description: Cow::Borrowed(description) }
}

const fn path(name: &'static str, description: &'static str) -> Parameter {
    Parameter { name, place: Place::Path, kind: "string", description: Cow::Borrowed(description) }
}
