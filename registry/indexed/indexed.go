// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

// Package indexed stores the lists and tables of a large node's registry. Such a registry has hundreds of kilobytes,
// but most processes use and change only one entry. A process does not parse the entries that it does not use, and
// writes unchanged entries as their original text.
//
//   - [Entries] are a map from addresses to values. An index precedes the map in the text, so that a process finds an
//     entry without parsing the others.
//   - [Addrs] describes a list of addresses that has an index.
//   - [Kept] keeps the values of a table together with their original texts.
//
// Only [codec.ReadTrusted] uses the indexes. It is for text that neither a person nor another program has changed since
// a process of this suite wrote it. [codec.Read] ignores the indexes, and parses all values.
package indexed
