//! A cache of values compiled from configuration objects, valid until they change.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use knarr_api::status::Status;

use crate::object_reader::ObjectReader;

const GROUP: &str = "admissionregistration.k8s.io";

/// A value compiled from all objects of some resources.
pub struct Cached<T> {
    resources: &'static [&'static str],
    cached: ArcSwapOption<(Vec<u64>, Arc<T>)>,
}

impl<T> Cached<T> {
    pub fn new(resources: &'static [&'static str]) -> Self {
        Cached { resources, cached: ArcSwapOption::empty() }
    }

    /// Fails if a configuration object cannot be read, since what it would refuse is unknown.
    pub fn get(
        &self,
        objects: &dyn ObjectReader,
        build: impl FnOnce(&dyn ObjectReader) -> Result<T, Status>,
    ) -> Result<Arc<T>, Status> {
        let versions: Vec<u64> = self.resources.iter().map(|resource| objects.version(GROUP, resource)).collect();
        if let Some(cached) = &*self.cached.load()
            && cached.0 == versions
        {
            return Ok(cached.1.clone());
        }
        let value = Arc::new(build(objects)?);
        self.cached.store(Some(Arc::new((versions, value.clone()))));
        Ok(value)
    }
}

/// All objects of one resource, in name order.
pub fn all(objects: &dyn ObjectReader, resource: &str) -> Result<Vec<Arc<serde_json::Value>>, Status> {
    objects.read_all(GROUP, resource, "")
}
