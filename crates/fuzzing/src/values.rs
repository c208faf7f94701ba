//! Values of any type that can be decoded: a format whose bytes are choices. What a type asks for, it
//! gets, so whatever its fields can hold comes up, and nothing must be written for each type.

use crate::source::{PARTS_MAX, Source};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer,
    MapAccess, SeqAccess, VariantAccess, Visitor, value::Error,
};

impl Source<'_> {
    /// A value of a message's type: whatever its fields' types can hold. `None` if the type refuses
    /// what was made for it, as types with rules of their own do.
    pub fn value<T: DeserializeOwned>(&mut self) -> Option<T> {
        // A type with rules refuses most values; what is left of the input makes others.
        const ATTEMPTS: usize = 8;
        (0..ATTEMPTS).find_map(|_| {
            self.parts = PARTS_MAX;
            make(self).ok()
        })
    }
}

/// A value of `T` from the choices in a source.
fn make<T: DeserializeOwned>(source: &mut Source<'_>) -> Result<T, Error> {
    T::deserialize(Maker(source))
}

struct Maker<'s, 'a>(&'s mut Source<'a>);

impl Maker<'_, '_> {
    /// How many elements a list has. Long ones are rare; the parts of all lists together are bounded.
    fn count(&mut self) -> usize {
        let wanted = match self.0.byte() {
            0..100 => 0,
            100..180 => 1,
            180..240 => 2 + self.0.below(4),
            _ => self.0.below(64),
        };
        let count = wanted.min(self.0.parts);
        self.0.parts -= count;
        count
    }
}

macro_rules! numbers {
    ($($name:ident $visit:ident $type:ty;)*) => {$(
        fn $name<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.0.number() as $type)
        }
    )*};
}

impl<'de> Deserializer<'de> for Maker<'_, '_> {
    type Error = Error;

    numbers! {
        deserialize_i8 visit_i8 i8;
        deserialize_i16 visit_i16 i16;
        deserialize_i32 visit_i32 i32;
        deserialize_i64 visit_i64 i64;
        deserialize_u8 visit_u8 u8;
        deserialize_u16 visit_u16 u16;
        deserialize_u32 visit_u32 u32;
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u64(self.0.number())
    }

    fn deserialize_u128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let high = u128::from(self.0.number()) << 64;
        visitor.visit_u128(high | u128::from(self.0.number()))
    }

    fn deserialize_i128<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_i128((i128::from(self.0.number()) << 64) | i128::from(self.0.number()))
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_f32(self.0.number() as f32)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_f64(self.0.number() as f64)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(self.0.chance())
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_char(char::from(self.0.byte()))
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.0.text())
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.0.text())
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_byte_buf(self.0.bytes(40))
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_byte_buf(self.0.bytes(40))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.chance() {
            true => visitor.visit_some(self),
            false => visitor.visit_none(),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let left = self.count();
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn deserialize_map<V: Visitor<'de>>(mut self, visitor: V) -> Result<V::Value, Error> {
        let left = self.count();
        visitor.visit_map(Elements { maker: self, left })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let left = fields.len();
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let chosen = self.0.below(variants.len()) as u32;
        visitor.visit_enum(Variant {
            maker: self,
            chosen,
        })
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.0.text())
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.below(8) {
            0 => visitor.visit_unit(),
            1 => self.deserialize_bool(visitor),
            2 => self.deserialize_u64(visitor),
            3 => self.deserialize_i64(visitor),
            4 => self.deserialize_seq(visitor),
            5 => self.deserialize_map(visitor),
            _ => self.deserialize_string(visitor),
        }
    }

    /// So that addresses are numbers, as in messages.
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The elements of a list, a map or a structure.
struct Elements<'s, 'a> {
    maker: Maker<'s, 'a>,
    left: usize,
}

impl Elements<'_, '_> {
    fn next<'de, T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(Maker(self.maker.0)).map(Some)
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        self.next(seed)
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        self.next(seed)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        seed.deserialize(Maker(self.maker.0))
    }
}

/// One variant of an enum.
struct Variant<'s, 'a> {
    maker: Maker<'s, 'a>,
    chosen: u32,
}

impl<'s, 'a, 'de> EnumAccess<'de> for Variant<'s, 'a> {
    type Error = Error;
    type Variant = Maker<'s, 'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Error> {
        let chosen: serde::de::value::U32Deserializer<Error> = self.chosen.into_deserializer();
        Ok((seed.deserialize(chosen)?, self.maker))
    }
}

impl<'de> VariantAccess<'de> for Maker<'_, '_> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        if self.0.parts == 0 {
            return Err(Error::custom("the value has too many parts"));
        }
        self.0.parts -= 1;
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, left: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { maker: self, left })
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let left = fields.len();
        visitor.visit_seq(Elements { maker: self, left })
    }
}

#[cfg(test)]
mod tests {
    use super::make;
    use crate::Source;
    use serde::Deserialize;
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Deserialize, PartialEq, Debug)]
    enum Shape {
        Empty,
        Round(u32),
        Named {
            name: String,
            at: Option<(i64, u128)>,
        },
        Many(Vec<Shape>),
        Table(BTreeMap<u8, Result<bool, String>>),
    }

    #[test]
    fn every_variant_of_a_type_comes_up_with_different_content() {
        let (mut kinds, mut shown) = (BTreeSet::new(), BTreeSet::new());
        for round in 0..400_u32 {
            let entropy: Vec<u8> = (0..200_u32)
                .map(|at| {
                    (round.wrapping_mul(0x9e37_79b9) ^ at.wrapping_mul(0x85eb_ca6b)).to_le_bytes()
                        [2]
                })
                .collect();
            let shape: Shape = make(&mut Source::new(&entropy)).unwrap();
            kinds.insert(match &shape {
                Shape::Empty => 0,
                Shape::Round(_) => 1,
                Shape::Named { at, .. } => 2 + usize::from(at.is_some()),
                Shape::Many(many) => 4 + usize::from(many.is_empty()),
                Shape::Table(table) => 6 + usize::from(table.values().any(Result::is_err)),
            });
            shown.insert(format!("{shape:?}"));
        }
        assert_eq!(kinds.len(), 8, "{kinds:?}");
        assert!(shown.len() > 100, "{} values", shown.len());
    }

    #[test]
    fn a_type_that_contains_itself_ends() {
        let endless = [3_u8, 255, 63].repeat(1000);
        make::<Shape>(&mut Source::new(&endless)).unwrap_err();
        let mut source = Source::new(&endless);
        assert!(source.value::<Vec<Vec<Vec<u8>>>>().is_some());
    }
}
