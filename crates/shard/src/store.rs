//! The catalog and the pool as the object store that SlateDB asks for.
