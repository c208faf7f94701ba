//! Presents the catalog and the pool as the object store that SlateDB needs.

mod multipart;
#[cfg(test)]
mod tests;

use crate::catalog::{Catalog, Condition, Content, Object, Refusal};
use async_trait::async_trait;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::stream::{self, BoxStream, StreamExt};
use model::{EntryNumber, ErrorKind, SegmentPlace, Timestamp};
use multipart::Multipart;
use object_store::path::Path;
use object_store::{
    Attribute, Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions,
    PutPayload, PutResult, Result,
};
use slatedb_common::retry::NonRetryable;
use std::fmt;
use std::ops::Range;

const STORE: &str = "catalog";
/// Segments of one object read concurrently.
const READS_MAX: usize = 4;
/// Names removed in one change.
const REMOVE_BATCH: usize = 256;

/// An object store on the catalog.
#[derive(Clone)]
pub(crate) struct CatalogStore {
    catalog: Catalog,
}

impl CatalogStore {
    pub(crate) fn new(catalog: Catalog) -> Self {
        Self { catalog }
    }

    async fn put_content(
        &self,
        location: &Path,
        condition: Condition,
        content: Content,
        attributes: &Attributes,
    ) -> Result<PutResult> {
        let attributes = attributes_to_text(attributes)?;
        let path = location.to_string();
        match self
            .catalog
            .put(path.clone(), condition.clone(), content, attributes)
            .await
        {
            Ok(version) => Ok(put_result(version)),
            Err(Refusal::Log(error)) => Err(self.failure(error)),
            Err(Refusal::Condition) => Err(refused(path, &condition)),
        }
    }

    fn check(&self, location: &Path, condition: &Condition) -> Result<()> {
        let found = self
            .catalog
            .get(location.as_ref())
            .map(|object| object.version);
        let holds = match condition {
            Condition::Any => true,
            Condition::Absent => found.is_none(),
            Condition::Version(version) => found == Some(*version),
        };
        if holds {
            Ok(())
        } else {
            Err(refused(location.to_string(), condition))
        }
    }

    /// If the shard was given up, only a take-over helps; other failures may be temporary.
    fn failure(&self, error: model::Error) -> Error {
        let is_final = self.catalog.log().failed().is_some()
            || matches!(
                error.kind(),
                ErrorKind::OldEpoch | ErrorKind::Corrupt | ErrorKind::ShuttingDown
            );
        let source: Box<dyn std::error::Error + Send + Sync> = if is_final {
            Box::new(NonRetryable(Box::new(error)))
        } else {
            Box::new(error)
        };
        Error::Generic {
            store: STORE,
            source,
        }
    }
}

impl fmt::Display for CatalogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STORE)
    }
}

impl fmt::Debug for CatalogStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(STORE)
    }
}

#[async_trait]
impl ObjectStore for CatalogStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let condition = match &opts.mode {
            PutMode::Overwrite => Condition::Any,
            PutMode::Create => Condition::Absent,
            PutMode::Update(update) => {
                let version = update
                    .e_tag
                    .as_deref()
                    .and_then(|tag| tag.parse().ok())
                    .map(EntryNumber);
                Condition::Version(version.unwrap_or(EntryNumber(0)))
            }
        };
        // Checked first to avoid a useless write; decided when the entry is appended.
        self.check(location, &condition)?;
        let content = self
            .catalog
            .store(Bytes::from(payload))
            .await
            .map_err(|error| self.failure(error))?;
        self.put_content(location, condition, content, &opts.attributes)
            .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Ok(Box::new(Multipart::new(
            self.clone(),
            location.clone(),
            opts.attributes,
        )))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let Some(object) = self.catalog.get(location.as_ref()) else {
            let source = "the catalog has no such name".into();
            return Err(Error::NotFound {
                path: location.to_string(),
                source,
            });
        };
        let meta = meta(location.clone(), &object);
        options.check_preconditions(&meta)?;
        let attributes = attributes_from_text(&object.attributes);
        let range = match &options.range {
            Some(range) => range
                .as_range(object.size)
                .map_err(|error| Error::Generic {
                    store: STORE,
                    source: Box::new(error),
                })?,
            None => 0..object.size,
        };
        let payload = if options.head {
            stream::empty().boxed()
        } else {
            match object.content {
                Content::Inline(bytes) => {
                    let range = index(range.start)..index(range.end);
                    stream::once(async move { Ok(bytes.slice(range)) }).boxed()
                }
                Content::Segments(places) => self.read(places, range.clone()),
            }
        };
        Ok(GetResult {
            payload: GetResultPayload::Stream(payload),
            meta,
            range,
            attributes,
            extensions: options.extensions,
        })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        locations
            .ready_chunks(REMOVE_BATCH)
            .then(move |batch| {
                let store = store.clone();
                async move {
                    let names = batch.iter().flatten().map(ToString::to_string).collect();
                    let failed = store.catalog.remove(names).await.err();
                    let answer = move |location: Result<Path>| match &failed {
                        Some(error) => location.and_then(|_| Err(store.failure(error.clone()))),
                        None => location,
                    };
                    stream::iter(batch.into_iter().map(answer).collect::<Vec<_>>())
                }
            })
            .flatten()
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let found = self.catalog.list(&folder(prefix));
        let metas: Vec<_> = found
            .into_iter()
            .map(|(name, object)| Ok(meta(path(name), &object)))
            .collect();
        stream::iter(metas).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let folder = folder(prefix);
        let mut out = ListResult {
            common_prefixes: Vec::new(),
            objects: Vec::new(),
            extensions: Default::default(),
        };
        for (name, object) in self.catalog.list(&folder) {
            match name[folder.len()..].split_once('/') {
                None => out.objects.push(meta(path(name), &object)),
                Some((child, _)) => {
                    let child = path(format!("{folder}{child}"));
                    if out.common_prefixes.last() != Some(&child) {
                        out.common_prefixes.push(child);
                    }
                }
            }
        }
        Ok(out)
    }

    /// Copies the bytes: a segment belongs to only one object.
    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let condition = match options.mode {
            CopyMode::Overwrite => Condition::Any,
            CopyMode::Create => Condition::Absent,
        };
        self.check(to, &condition)?;
        let source = self.get_opts(from, GetOptions::new()).await?;
        let attributes = source.attributes.clone();
        let bytes = source.bytes().await?;
        let content = self
            .catalog
            .store(bytes)
            .await
            .map_err(|error| self.failure(error))?;
        self.put_content(to, condition, content, &attributes)
            .await
            .map(drop)
    }
}

impl CatalogStore {
    fn read(
        &self,
        places: Vec<SegmentPlace>,
        range: Range<u64>,
    ) -> BoxStream<'static, Result<Bytes>> {
        let mut from = 0;
        let mut reads = Vec::new();
        for place in places {
            let end = from + u64::from(place.length);
            let (first, last) = (range.start.max(from), range.end.min(end));
            if first < last {
                let within =
                    |at: u64| u32::try_from(at - from).expect("segments are at most 16 MiB long");
                reads.push((place, within(first), within(last) - within(first)));
            }
            from = end;
        }
        let store = self.clone();
        stream::iter(reads)
            .map(move |(place, at, length)| {
                let store = store.clone();
                async move {
                    match store.catalog.read_segment(place, at, length).await {
                        Ok(pieces) => pieces.into_iter().map(Ok).collect::<Vec<_>>(),
                        Err(error) => vec![Err(store.failure(error))],
                    }
                }
            })
            .buffered(READS_MAX)
            .flat_map(stream::iter)
            .boxed()
    }
}

fn refused(path: String, condition: &Condition) -> Error {
    match condition {
        Condition::Absent | Condition::Any => Error::AlreadyExists {
            path,
            source: "the catalog has this name".into(),
        },
        Condition::Version(version) => Error::Precondition {
            path,
            source: format!("it is not at version {version}").into(),
        },
    }
}

fn put_result(version: EntryNumber) -> PutResult {
    PutResult {
        e_tag: Some(version.0.to_string()),
        version: None,
        extensions: Default::default(),
    }
}

fn meta(location: Path, object: &Object) -> ObjectMeta {
    ObjectMeta {
        location,
        last_modified: date(object.modified),
        size: object.size,
        e_tag: Some(object.version.0.to_string()),
        version: None,
    }
}

pub(crate) fn date(time: Timestamp) -> DateTime<Utc> {
    DateTime::from_timestamp_nanos(time.0)
}

fn path(name: String) -> Path {
    Path::parse(name).expect("names in the catalog were paths")
}

/// The prefix of names in a folder: prefixes end between path segments.
fn folder(prefix: Option<&Path>) -> String {
    match prefix {
        Some(prefix) if !prefix.as_ref().is_empty() => format!("{prefix}/"),
        _ => String::new(),
    }
}

fn index(at: u64) -> usize {
    usize::try_from(at).expect("inline objects fit into memory")
}

/// Attributes as text: `m:` for metadata, otherwise the header's name.
fn attributes_to_text(attributes: &Attributes) -> Result<Vec<(String, String)>> {
    let name = |attribute: &Attribute| {
        Ok(match attribute {
            Attribute::Metadata(name) => format!("m:{name}"),
            Attribute::ContentDisposition => "content-disposition".to_owned(),
            Attribute::ContentEncoding => "content-encoding".to_owned(),
            Attribute::ContentLanguage => "content-language".to_owned(),
            Attribute::ContentType => "content-type".to_owned(),
            Attribute::CacheControl => "cache-control".to_owned(),
            Attribute::StorageClass => "storage-class".to_owned(),
            _ => {
                let source = format!("attribute {attribute:?} is unknown").into();
                return Err(Error::NotSupported { source });
            }
        })
    };
    let mut out = Vec::new();
    for (attribute, value) in attributes {
        out.push((name(attribute)?, value.as_ref().to_owned()));
    }
    out.sort();
    Ok(out)
}

fn attributes_from_text(text: &[(String, String)]) -> Attributes {
    let attribute = |name: &str| {
        Some(match name {
            "content-disposition" => Attribute::ContentDisposition,
            "content-encoding" => Attribute::ContentEncoding,
            "content-language" => Attribute::ContentLanguage,
            "content-type" => Attribute::ContentType,
            "cache-control" => Attribute::CacheControl,
            "storage-class" => Attribute::StorageClass,
            _ => Attribute::Metadata(name.strip_prefix("m:")?.to_owned().into()),
        })
    };
    text.iter()
        .filter_map(|(name, value)| {
            Some((
                attribute(name)?,
                object_store::AttributeValue::from(value.clone()),
            ))
        })
        .collect()
}
