// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package bundle

import (
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/aws"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/ipam/book"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/nl"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/registry"
	"github.com/cni-ipvlan-vpc-k8s/cni-ipvlan-vpc-k8s/tool/conf"
)

// An allowance has the words and tags of this node that may leave the node. The patterns below match words that may
// leave every node.
type allowance struct {
	words map[string]bool   // names of pods, links and networks; texts of others may contain these words
	tags  map[string]string // tags of the conflists, by key; other tags do not leave the node
}

func newAllowance() *allowance { return &allowance{map[string]bool{}, map[string]string{}} }

// know allows these words to leave the node.
func (w *allowance) know(words ...string) {
	for _, word := range words {
		if word != "" {
			w.words[word] = true
		}
	}
}

// withheld replaces a value that does not leave the node.
const withheld = conf.Withheld

// ownTags are the tags of ENIs that this project sets, with values of its own.
var ownTags = []string{book.TagManaged, book.TagInstance, book.TagPool, book.TagKeep}

// keepTags returns the tags that may leave the node. These are our own tags with values that can be no secret, and tags
// that a conflist has with the same value.
func (w *allowance) keepTags(tags map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range tags {
		if slices.Contains(ownTags, key) && w.plain(value, false) || w.tags[key] == value && value != "" {
			kept[key] = value
		}
	}
	return kept
}

// state returns the part of a registry that may leave the node.
func (w *allowance) state(s *registry.State) *registry.State {
	s = s.Known()
	enis := map[string]registry.ENI{}
	for id, e := range s.ENIs {
		e.Tags, e.SubnetTags = w.keepTags(e.Tags), w.keepTags(e.SubnetTags)
		e.Settings = nil // settings of a card that a pod has or had
		enis[id] = e
	}
	intents := map[string]registry.Intent{}
	for i, token := range slices.Sorted(maps.Keys(s.Intents)) {
		intent := s.Intents[token]
		intent.Tags = w.keepTags(intent.Tags)
		intents[strconv.Itoa(i+1)] = intent
	}
	failures := map[string]registry.Failure{}
	for key, f := range s.Failures {
		f.Text, f.Hint = w.text(f.Text), w.text(f.Hint)
		failures[w.text(key)] = f
	}
	refusals := map[string]registry.Refusal{}
	for key, r := range s.Refusals {
		r.Code, r.Message = w.text(r.Code), w.text(r.Message)
		refusals[key] = r
	}
	s.ENIs, s.Intents, s.Failures, s.Refusals, s.LogLines = enis, intents, failures, refusals, nil
	return s
}

// enis returns the parts of ENIs that may leave the node. The ENIs are as EC2 or metadata describes them.
func (w *allowance) enis(all []aws.ENI) (kept []aws.ENI) {
	for _, e := range all {
		e.Tags, e.Description = w.keepTags(e.Tags), ""
		kept = append(kept, e)
	}
	return kept
}

func (w *allowance) subnets(all []aws.Subnet) (kept []aws.Subnet) {
	for _, s := range all {
		s.Tags, s.Outpost = w.keepTags(s.Tags), ""
		kept = append(kept, s)
	}
	return kept
}

// links returns the parts of links that may leave the node. An alias may leave only if it is our own.
func (w *allowance) links(all []nl.Link) []nl.Link {
	kept := slices.Clone(all)
	for i, l := range kept {
		if !nl.IsPair(l.Group) || !ownAlias().MatchString(l.Alias) {
			kept[i].Alias = ""
		}
	}
	return kept
}

// lazy returns a function that compiles a regular expression at its first call. Otherwise each start of the tool would
// take the time to compile all of them.
func lazy(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// ownAlias matches the alias of one of our pairs: our name, the network, the container, the interface, and the pod.
var ownAlias = lazy(`^cni-ipvlan-vpc-k8s [\w.-]{1,64} [\w.-]{1,128} [\w.-]{1,15}( [\w./-]{1,128})?$`)

// mostText is the maximum number of bytes of a text of others that may leave the node.
const mostText = 4 << 10

// Patterns of words that can be no secret, and of words that name a secret.
var (
	separators = lazy(`[-/._:=@,;+()\[\]{}<>"'|*#%\\!?$&~^` + "`" + `]+`)
	plainWord  = lazy(`^[A-Za-z]?[a-z]{0,19}([A-Z]{1,4}[a-z]{1,19}){0,6}[A-Z]{0,4}s?$|^[A-Z]{1,16}$`)
	numeral    = lazy(`^\d{1,10}(ns|us|ms|s|m|h|d|w|x|k|kB|kb|MB|MiB|GiB|B)?$|^0x[0-9a-f]{1,8}$`)
	cloudID    = lazy(`^(i|eni|eni-attach|subnet|sg|vpc|pcx|rtb|igw|nat|vpce|eigw|tgw|ami)-[0-9a-f]{1,17}$`)
	mixed      = lazy(`^(IPv|ipv|ip|l|L|eth|ens|enp|veth|lo|EC|ec|k|K|v|V|t|c|m|r|HTTP|TLS|RFC|arm|amd)` +
		`\d{1,4}(s|n|gn|i|a|g|d|Z|T|xlarge)?\d?$|^k[38]s$|^\d{1,2}xlarge$|^\d[a-f]$|^[12]\d{3}-\d\d-\d\dT\d\d$|^\d\dT\d\d$|^netns\d*$`)
	clock = lazy(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)
	// words that name a secret: the next word never leaves the node
	naming = lazy(`(?i)(passw|passphrase|secret|token|credential|authoriz|bearer|api[-_]?key|` +
		`private[-_]?key|cookie|session|signature|access[-_]?key|pwd$|basic$)`)
	variable = lazy(`^["']?[A-Z][A-Z0-9_]{2,}=`)
	request  = lazy(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// text returns a text without the words that may be a secret.
func (w *allowance) text(text string) string {
	if len(text) > mostText {
		text = text[:mostText] + " " + withheld
	}
	words := strings.Fields(text)
	hide := false // whether the word before names a secret
	for i, word := range words {
		lower := strings.ToLower(word)
		switch {
		case strings.Contains(word, "-----"): // PEM: a key or a certificate
			return strings.Join(append(words[:i], withheld), " ")
		case hide && !filler[strings.Trim(lower, `:="'`)]:
			words[i], hide = withheld, naming().MatchString(word)
		case naming().MatchString(word):
			words[i], hide = w.named(word), true
		case variable().MatchString(word):
			name, _, _ := strings.Cut(word, "=")
			words[i] = name + "=" + withheld
		case !w.plain(word, i > 0 && strings.Contains(strings.ToLower(words[i-1]), "request")):
			words[i] = withheld
		}
	}
	return strings.Join(slices.Compact(words), " ")
}

// filler are words between the name of a secret and the secret.
var filler = map[string]bool{"is": true, "was": true, "=": true, ":": true, "": true, "the": true, "a": true}

// named returns the word, which names a secret. If the word also contains a value, or may itself be a secret, named
// returns withheld.
func (w *allowance) named(word string) string {
	end := naming().FindStringIndex(word)[1]
	rest := word[end:]
	if at := strings.IndexAny(rest, `=:"'/`); at >= 0 && at < len(rest)-1 {
		return withheld
	}
	if !w.plain(word, false) {
		return withheld
	}
	return word
}

// plain reports whether a word can be no secret. If isRequest is true, the word may also be the ID of an EC2 request.
func (w *allowance) plain(word string, isRequest bool) bool {
	core := strings.Trim(word, `"'()[]{}<>,;:.!?`+"`")
	switch {
	case core == "" || w.words[core] || clock().MatchString(core) || cloudID().MatchString(core):
		return true
	case isRequest && request().MatchString(core):
		return true
	case strings.Contains(core, "://"):
		u, err := url.Parse(core)
		return err == nil && u.User == nil && u.RawQuery == "" && u.Fragment == "" && w.parts(u.Host+u.Path)
	case isAddress(core):
		return true
	}
	return w.parts(core)
}

func isAddress(word string) bool {
	if _, err := netip.ParseAddr(word); err == nil {
		return true
	}
	if _, err := netip.ParsePrefix(word); err == nil {
		return true
	}
	_, err := netip.ParseAddrPort(word)
	return err == nil
}

// parts reports whether each part of a word is a word of a language, a number, or a known name or abbreviation.
func (w *allowance) parts(word string) bool {
	for known := range strings.SplitSeq(word, "/") {
		if w.words[known] || cloudID().MatchString(known) || isAddress(known) {
			continue
		}
		for _, part := range separators().Split(known, -1) {
			if part != "" && !w.words[part] && !plainWord().MatchString(part) && !numeral().MatchString(part) &&
				!mixed().MatchString(part) {
				return false
			}
		}
	}
	return true
}
