//! Uploads in parts: each part is written to segments at once; the catalog names them at the end.

use super::CatalogStore;
use crate::catalog::{Condition, Content};
use async_trait::async_trait;
use bytes::Bytes;
use model::SegmentPlace;
use object_store::path::Path;
use object_store::{Attributes, Error, MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;

/// Parts of one upload: 100 GiB at 10 MiB each.
const PARTS_MAX: usize = 10_240;

/// One upload. If dropped before completion, its segments are deleted.
pub(super) struct Multipart {
    store: CatalogStore,
    location: Path,
    attributes: Attributes,
    /// Each part's segments, once they are durable.
    parts: Arc<Mutex<Vec<Option<Vec<SegmentPlace>>>>>,
    /// The complete content, in case completion is repeated.
    content: Option<Content>,
}

impl Multipart {
    pub(super) fn new(store: CatalogStore, location: Path, attributes: Attributes) -> Self {
        Self {
            store,
            location,
            attributes,
            parts: Arc::default(),
            content: None,
        }
    }

    fn assemble(&self) -> Result<Content> {
        let parts = std::mem::take(&mut *self.parts.lock());
        let count = parts.len();
        let whole: Vec<Vec<SegmentPlace>> = parts.into_iter().flatten().collect();
        let complete = whole.len() == count;
        let places: Vec<SegmentPlace> = whole.into_iter().flatten().collect();
        if !complete {
            self.store.catalog.abandon(places);
            let source = "a part of the upload is not written".into();
            return Err(Error::Generic {
                store: super::STORE,
                source,
            });
        }
        Ok(if places.is_empty() {
            Content::Inline(Bytes::new())
        } else {
            Content::Segments(places)
        })
    }

    fn abandon(&self) {
        let places = self.parts.lock().drain(..).flatten().flatten().collect();
        self.store.catalog.abandon(places);
    }
}

#[async_trait]
impl MultipartUpload for Multipart {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let store = self.store.clone();
        let parts = self.parts.clone();
        let at = {
            let mut parts = parts.lock();
            parts.push(None);
            parts.len() - 1
        };
        Box::pin(async move {
            if at >= PARTS_MAX {
                let source = format!("an object has at most {PARTS_MAX} parts").into();
                return Err(Error::Generic {
                    store: super::STORE,
                    source,
                });
            }
            let places = store
                .catalog
                .store_segments(Bytes::from(data))
                .await
                .map_err(|error| store.failure(error))?;
            let mut parts = parts.lock();
            match parts.get_mut(at) {
                Some(part) => *part = Some(places),
                // The upload was aborted meanwhile.
                None => store.catalog.abandon(places),
            }
            Ok(())
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let content = match &self.content {
            Some(content) => content.clone(),
            None => self.assemble()?,
        };
        self.content = Some(content.clone());
        self.store
            .put_content(&self.location, Condition::Any, content, &self.attributes)
            .await
    }

    async fn abort(&mut self) -> Result<()> {
        self.abandon();
        Ok(())
    }
}

impl Drop for Multipart {
    fn drop(&mut self) {
        if !self.parts.lock().is_empty() && self.store.catalog.log().failed().is_none() {
            self.abandon();
        }
    }
}

impl fmt::Debug for Multipart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Multipart")
            .field("location", &self.location)
            .finish_non_exhaustive()
    }
}
