// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The cni-ipvlan-vpc-k8s authors

package aws

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"

	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
)

// maxAnswer is the maximum size of an answer in bytes. An answer that describes [pageSize] ENIs, each with fifty
// addresses, has about 16 MiB.
const maxAnswer = 64 << 20

// maxRefusal is the maximum size of an error answer in bytes. EC2's error answers have at most a few kilobytes.
const maxRefusal = 256 << 10

// A checkedClient makes requests to EC2, and returns an error if an answer cannot be from EC2. Captive portals and
// proxies send web pages with status 200, and the SDK may read such a page as an empty answer. If the request asks
// whether an ENI exists, an empty answer would mean that it does not exist. If the request asks for a change, an empty
// answer would mean that EC2 has made the change.
//
// EC2's answer to an action is a complete XML document. The name of its root element is the action's name followed by
// "Response". If the document has an element "return" with a text other than "true", EC2 has not carried out the
// request (EC2 API reference, for example the response elements of DeleteNetworkInterface).
type checkedClient struct{ HTTPClient }

func (c checkedClient) Do(r *http.Request) (*http.Response, error) {
	resp, err := c.HTTPClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	done, most := resp.StatusCode/100 == 2, maxRefusal
	if done {
		most = maxAnswer
	}
	var read bytes.Buffer
	if _, err := read.ReadFrom(io.LimitReader(resp.Body, int64(most)+1)); err != nil {
		return nil, err
	}
	body := read.Bytes()
	if len(body) > most {
		return nil, invalidAnswer{fmt.Errorf("the answer, %s, is larger than %d KiB: %.200q", resp.Status,
			most>>10, body)}
	}
	if done {
		if err := checkAnswer(body, awsmiddleware.GetOperationName(r.Context())); err != nil {
			return nil, invalidAnswer{fmt.Errorf("%w: %.80q", err, body)}
		}
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// An invalidAnswer is an error about an answer that cannot be from EC2.
type invalidAnswer struct{ error }

func (i invalidAnswer) Unwrap() error { return i.error }

// checkAnswer returns an error if the document cannot be EC2's answer to the action.
func checkAnswer(document []byte, action string) error {
	d := xml.NewDecoder(bytes.NewReader(document))
	roots, depth, inReturn := 0, 0, false
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && roots == 1 {
			return nil // the decoder returns io.EOF only if all elements are closed
		}
		if err != nil {
			return fmt.Errorf("this is no answer of EC2: %w", err)
		}
		switch t := token.(type) {
		case xml.StartElement:
			if depth == 0 {
				roots++
				if t.Name.Local != action+"Response" || roots > 1 {
					return fmt.Errorf("this is no answer of EC2 to %s", action)
				}
			}
			depth++
			inReturn = depth == 2 && t.Name.Local == "return"
		case xml.EndElement:
			depth--
			inReturn = false
		case xml.CharData:
			if inReturn && string(bytes.TrimSpace(t)) != "true" {
				return fmt.Errorf("EC2 has not carried out the call: the field \"return\" of the answer is %.80q, not "+
					"\"true\"", t)
			}
		}
	}
}
