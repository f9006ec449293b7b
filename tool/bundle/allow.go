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

// An allowance lists the words and tags that may leave this node in the bundle. The bundle also keeps words that match
// the patterns in this source file. It withholds all other words, because they may be secrets.
type allowance struct {
	words map[string]bool   // names of pods, links and networks; keptText keeps these words
	tags  map[string]string // the subnetTags of the conflists, by key; keptTags keeps these tags
}

func newAllowance() *allowance { return &allowance{map[string]bool{}, map[string]string{}} }

// allowWords adds words that may leave the node.
func (w *allowance) allowWords(words ...string) {
	for _, word := range words {
		if word != "" {
			w.words[word] = true
		}
	}
}

// withheld replaces a value that does not leave the node.
const withheld = conf.Withheld

// ownTags are the keys of the tags that this project sets on ENIs.
var ownTags = []string{book.TagManaged, book.TagInstance, book.TagPool, book.TagKeep}

// keptTags returns the tags that may leave the node. They are the ownTags whose values cannot be secrets, and the tags
// whose keys and values are in a conflist.
func (w *allowance) keptTags(tags map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range tags {
		if slices.Contains(ownTags, key) && w.isPlain(value, false) || w.tags[key] == value && value != "" {
			kept[key] = value
		}
	}
	return kept
}

// keptState returns the part of a registry that may leave the node.
func (w *allowance) keptState(s *registry.State) *registry.State {
	s = s.Known()
	enis := map[string]registry.ENI{}
	for id, e := range s.ENIs {
		e.Tags, e.SubnetTags = w.keptTags(e.Tags), w.keptTags(e.SubnetTags)
		e.Settings = nil // the link's settings before a pod got the whole ENI: they must not leave the node
		enis[id] = e
	}
	intents := map[string]registry.Intent{}
	for i, token := range slices.Sorted(maps.Keys(s.Intents)) {
		intent := s.Intents[token]
		intent.Tags = w.keptTags(intent.Tags)
		intents[strconv.Itoa(i+1)] = intent
	}
	failures := map[string]registry.Failure{}
	for key, f := range s.Failures {
		f.Text, f.Hint = w.keptText(f.Text), w.keptText(f.Hint)
		failures[w.keptText(key)] = f
	}
	refusals := map[string]registry.Refusal{}
	for key, r := range s.Refusals {
		r.Code, r.Message = w.keptText(r.Code), w.keptText(r.Message)
		refusals[key] = r
	}
	s.ENIs, s.Intents, s.Failures, s.Refusals, s.LogLines = enis, intents, failures, refusals, nil
	return s
}

// keptENIs returns its argument, ENIs from EC2 or from metadata, without the parts that must not leave the node.
func (w *allowance) keptENIs(all []aws.ENI) (kept []aws.ENI) {
	for _, e := range all {
		e.Tags, e.Description = w.keptTags(e.Tags), ""
		kept = append(kept, e)
	}
	return kept
}

func (w *allowance) keptSubnets(all []aws.Subnet) (kept []aws.Subnet) {
	for _, s := range all {
		s.Tags, s.Outpost = w.keptTags(s.Tags), ""
		kept = append(kept, s)
	}
	return kept
}

// keptLinks returns the parts of links that may leave the node. An alias may leave the node only if our plugins have
// set the alias.
func (w *allowance) keptLinks(all []nl.Link) []nl.Link {
	kept := slices.Clone(all)
	for i, l := range kept {
		if !nl.IsPair(l.Group) || !ownAlias().MatchString(l.Alias) {
			kept[i].Alias = ""
		}
	}
	return kept
}

// lazyRegexp returns a function. The first call of this function compiles the regular expression. So a start of the
// tool does not compile all expressions.
func lazyRegexp(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}

// ownAlias matches the alias of a veth pair of ours: our name, the network, the container, the interface, and the pod.
var ownAlias = lazyRegexp(`^cni-ipvlan-vpc-k8s [\w.-]{1,64} [\w.-]{1,128} [\w.-]{1,15}( [\w./-]{1,128})?$`)

// mostText is the maximum number of bytes that the bundle keeps of a text of another program.
const mostText = 4 << 10

// Some patterns match words that cannot be a secret. Other patterns match words that name a secret.
var (
	separators = lazyRegexp(`[-/._:=@,;+()\[\]{}<>"'|*#%\\!?$&~^` + "`" + `]+`)
	plainWord  = lazyRegexp(`^[A-Za-z]?[a-z]{0,19}([A-Z]{1,4}[a-z]{1,19}){0,6}[A-Z]{0,4}s?$|^[A-Z]{1,16}$`)
	numeral    = lazyRegexp(`^\d{1,10}(ns|us|ms|s|m|h|d|w|x|k|kB|kb|MB|MiB|GiB|B)?$|^0x[0-9a-f]{1,8}$`)
	cloudID    = lazyRegexp(`^(i|eni|eni-attach|subnet|sg|vpc|pcx|rtb|igw|nat|vpce|eigw|tgw|ami)-[0-9a-f]{1,17}$`)
	mixed      = lazyRegexp(`^(IPv|ipv|ip|l|L|eth|ens|enp|veth|lo|EC|ec|k|K|v|V|t|c|m|r|HTTP|TLS|RFC|arm|amd)` +
		`\d{1,4}(s|n|gn|i|a|g|d|Z|T|xlarge)?\d?$|^k[38]s$|^\d{1,2}xlarge$|^\d[a-f]$|^[12]\d{3}-\d\d-\d\dT\d\d$|^\d\dT\d\d$|^netns\d*$`)
	clock = lazyRegexp(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$`)
	// secretName matches words that name a secret. The next word may be the secret, so it does not leave the node
	secretName = lazyRegexp(`(?i)(passw|passphrase|secret|token|credential|authoriz|bearer|api[-_]?key|` +
		`private[-_]?key|cookie|session|signature|access[-_]?key|pwd$|basic$)`)
	variable = lazyRegexp(`^["']?[A-Z][A-Z0-9_]{2,}=`)
	request  = lazyRegexp(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// keptText returns the text, but replaces each word that may be a secret by the constant withheld.
func (w *allowance) keptText(text string) string {
	if len(text) > mostText {
		text = text[:mostText] + " " + withheld
	}
	words := strings.Fields(text)
	afterSecretName := false // whether the previous word names a secret
	for i, word := range words {
		lower := strings.ToLower(word)
		switch {
		case strings.Contains(word, "-----"): // PEM: a key or a certificate
			return strings.Join(append(words[:i], withheld), " ")
		case afterSecretName && !fillerWords[strings.Trim(lower, `:="'`)]:
			words[i], afterSecretName = withheld, secretName().MatchString(word)
		case secretName().MatchString(word):
			words[i], afterSecretName = w.keptName(word), true
		case variable().MatchString(word):
			name, _, _ := strings.Cut(word, "=")
			words[i] = name + "=" + withheld
		case !w.isPlain(word, i > 0 && strings.Contains(strings.ToLower(words[i-1]), "request")):
			words[i] = withheld
		}
	}
	return strings.Join(slices.Compact(words), " ")
}

// fillerWords are words between the name of a secret and the secret.
var fillerWords = map[string]bool{"is": true, "was": true, "=": true, ":": true, "": true, "the": true, "a": true}

// keptName returns its argument, a word that names a secret (for example, "token:"). If the word also contains a value,
// or may itself be a secret, keptName returns the constant withheld.
func (w *allowance) keptName(word string) string {
	end := secretName().FindStringIndex(word)[1]
	rest := word[end:]
	if at := strings.IndexAny(rest, `=:"'/`); at >= 0 && at < len(rest)-1 {
		return withheld
	}
	if !w.isPlain(word, false) {
		return withheld
	}
	return word
}

// isPlain reports whether a word is certainly no secret. The ID of an EC2 request looks like a secret. Such an ID is
// plain only if isRequest is true. isRequest says that the text has announced the ID of a request.
func (w *allowance) isPlain(word string, isRequest bool) bool {
	core := strings.Trim(word, `"'()[]{}<>,;:.!?`+"`")
	switch {
	case core == "" || w.words[core] || clock().MatchString(core) || cloudID().MatchString(core):
		return true
	case isRequest && request().MatchString(core):
		return true
	case strings.Contains(core, "://"):
		u, err := url.Parse(core)
		return err == nil && u.User == nil && u.RawQuery == "" && u.Fragment == "" && w.hasPlainParts(u.Host+u.Path)
	case isAddress(core):
		return true
	}
	return w.hasPlainParts(core)
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

// hasPlainParts splits a text at separators. It reports whether all parts are ordinary words, numbers, abbreviations,
// or names that may leave the node.
func (w *allowance) hasPlainParts(word string) bool {
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
