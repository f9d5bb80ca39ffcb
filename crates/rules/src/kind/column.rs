//! Columns of the tables that `kubectl get` prints.

/// The type whose documentation describes the metadata columns.
pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// One column of a kind's table (upstream: `TableColumnDefinition`).
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// The header: `Name`, `Age`.
    pub name: &'static str,
    /// The OpenAPI type of the cells: `string`, `integer`, `date`.
    pub kind: &'static str,
    /// The OpenAPI format of the cells; `name` marks the column that identifies the object.
    pub format: &'static str,
    /// The documentation of the column.
    pub description: Description,
    /// When kubectl prints the column.
    pub priority: ColumnPriority,
}

/// Where the documentation of a column comes from.
#[derive(Clone, Copy, Debug)]
pub enum Description {
    /// A text of the column's own.
    Text(&'static str),
    /// The documentation of a field of a type: `("io.k8s.api.core.v1.PodSpec", "nodeName")`.
    Field(&'static str, &'static str),
}

/// When kubectl prints a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnPriority {
    /// In every table; priority 0 on the wire.
    Always,
    /// Only with `-o wide`; priority 1 on the wire.
    Wide,
}

/// The columns of a kind that defines none.
pub(super) const DEFAULT_COLUMNS: &[Column] = &[
    Column {
        name: "Name",
        kind: "string",
        format: "name",
        description: Description::Field(OBJECT_META, "name"),
        priority: ColumnPriority::Always,
    },
    Column {
        name: "Created At",
        kind: "date",
        format: "",
        description: Description::Field(OBJECT_META, "creationTimestamp"),
        priority: ColumnPriority::Always,
    },
];
