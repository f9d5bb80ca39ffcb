//! Paths of the kinds that tests use.

const CLUSTER: bool = false;
const NAMESPACED: bool = true;

const KINDS: &[(&str, &str, &str, bool)] = &[
    ("CertificateSigningRequest", "/apis/certificates.k8s.io/v1", "certificatesigningrequests", CLUSTER),
    ("ClusterRole", "/apis/rbac.authorization.k8s.io/v1", "clusterroles", CLUSTER),
    ("ClusterRoleBinding", "/apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", CLUSTER),
    ("ConfigMap", "/api/v1", "configmaps", NAMESPACED),
    ("ControllerRevision", "/apis/apps/v1", "controllerrevisions", NAMESPACED),
    ("CronJob", "/apis/batch/v1", "cronjobs", NAMESPACED),
    ("CustomResourceDefinition", "/apis/apiextensions.k8s.io/v1", "customresourcedefinitions", CLUSTER),
    ("DaemonSet", "/apis/apps/v1", "daemonsets", NAMESPACED),
    ("Deployment", "/apis/apps/v1", "deployments", NAMESPACED),
    ("EndpointSlice", "/apis/discovery.k8s.io/v1", "endpointslices", NAMESPACED),
    ("Endpoints", "/api/v1", "endpoints", NAMESPACED),
    ("Event", "/api/v1", "events", NAMESPACED),
    ("HorizontalPodAutoscaler", "/apis/autoscaling/v2", "horizontalpodautoscalers", NAMESPACED),
    ("Job", "/apis/batch/v1", "jobs", NAMESPACED),
    ("Lease", "/apis/coordination.k8s.io/v1", "leases", NAMESPACED),
    ("Namespace", "/api/v1", "namespaces", CLUSTER),
    ("Node", "/api/v1", "nodes", CLUSTER),
    ("PersistentVolume", "/api/v1", "persistentvolumes", CLUSTER),
    ("PersistentVolumeClaim", "/api/v1", "persistentvolumeclaims", NAMESPACED),
    ("Pod", "/api/v1", "pods", NAMESPACED),
    ("PodDisruptionBudget", "/apis/policy/v1", "poddisruptionbudgets", NAMESPACED),
    ("ReplicaSet", "/apis/apps/v1", "replicasets", NAMESPACED),
    ("ReplicationController", "/api/v1", "replicationcontrollers", NAMESPACED),
    ("ResourceClaim", "/apis/resource.k8s.io/v1", "resourceclaims", NAMESPACED),
    ("ResourceClaimTemplate", "/apis/resource.k8s.io/v1", "resourceclaimtemplates", NAMESPACED),
    ("ResourceQuota", "/api/v1", "resourcequotas", NAMESPACED),
    ("Secret", "/api/v1", "secrets", NAMESPACED),
    ("Service", "/api/v1", "services", NAMESPACED),
    ("ServiceAccount", "/api/v1", "serviceaccounts", NAMESPACED),
    ("StatefulSet", "/apis/apps/v1", "statefulsets", NAMESPACED),
    ("StorageClass", "/apis/storage.k8s.io/v1", "storageclasses", CLUSTER),
    ("VolumeAttachment", "/apis/storage.k8s.io/v1", "volumeattachments", CLUSTER),
];

/// The path of a collection; `namespace` is ignored for kinds without.
pub fn path(kind: &str, namespace: &str) -> String {
    let found = KINDS.iter().find(|(known, ..)| *known == kind);
    let (_, prefix, plural, namespaced) = found.unwrap_or_else(|| panic!("no path for {kind}"));
    match *namespaced {
        NAMESPACED => format!("{prefix}/namespaces/{namespace}/{plural}"),
        CLUSTER => format!("{prefix}/{plural}"),
    }
}
