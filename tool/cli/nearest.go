// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package cli

import "strings"

// Nearest returns the known word that is most similar to a mistaken word. If several words are equally similar, it
// returns the first of these words. If no word is similar, it returns "".
func Nearest(word string, known []string) string {
	const similar = 0.6
	best, most := "", 0.0
	for _, k := range known {
		if l := likeness(strings.ToLower(word), strings.ToLower(k)); l >= similar && l > most {
			best, most = k, l
		}
	}
	return best
}

// likeness returns how similar two words are, from 0 to 1. It divides the length of the longest common subsequence by
// the average length of the two words.
func likeness(a, b string) float64 {
	// row[j] is the length of the longest common subsequence of a[:i] and b[:j].
	row := make([]int, len(b)+1)
	for i := range len(a) {
		diagonal := 0
		for j := range len(b) {
			above := row[j+1]
			row[j+1] = max(above, row[j])
			if a[i] == b[j] {
				row[j+1] = diagonal + 1
			}
			diagonal = above
		}
	}
	return float64(2*row[len(b)]) / float64(len(a)+len(b))
}
